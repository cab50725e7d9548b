//! A compressed bomb: sixty megabytes in less than 64 KiB.

use std::process::Command;
use std::sync::LazyLock;

pub static BOMB: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let packed = Command::new("sh").args(["-c", "head -c 60000000 /dev/zero | gzip -9"]).output().unwrap();
    assert!((1_000..64 << 10).contains(&packed.stdout.len()), "{} bytes: {packed:?}", packed.stdout.len());
    packed.stdout
});
