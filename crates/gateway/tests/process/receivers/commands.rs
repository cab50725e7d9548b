//! `entrega webhook` as a process: secrets from the environment, bodies from stdin, exit codes.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const BODY: &[u8] = b"{\"test\": 2432232314}";
const SIGNATURE: &str = "sha256=80ec8a89ce3cd22133a1066caecb4d04fea7467657c8514d717ec42c38a5c94c";

fn webhook(args: &[&str], secret: Option<&str>, body: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_entrega"));
    command.arg("webhook").args(args).env_clear().envs(secret.map(|secret| ("ENTREGA_WEBHOOK_SECRET", secret)));
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    // Fails when the program has ended already, without a look at the body.
    let _ = child.stdin.take().unwrap().write_all(body);
    child.wait_with_output().unwrap()
}

#[test]
fn the_secret_comes_from_the_environment_and_the_body_from_stdin() {
    let signed = webhook(&["sign", "-"], Some(SECRET), BODY);
    let headers = String::from_utf8(signed.stdout).unwrap();
    assert!(headers.starts_with(&format!("X-Signature: {SIGNATURE}\nwebhook-id: evt_")), "{headers}");
    assert_eq!(headers.lines().count(), 4, "{headers}");
    let both = format!("whsec_AfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw {SECRET}");
    for secret in [SECRET, &both] {
        let verified = webhook(&["verify", "--signature", SIGNATURE, "-"], Some(secret), BODY);
        assert_eq!(verified.status.code(), Some(0), "{verified:?}");
    }
}

#[test]
fn the_exit_code_says_whether_the_signature_is_right() {
    let flipped = b"{\"test\": 2432232315}";
    let wrong = webhook(&["verify", "--signature", SIGNATURE, "-"], Some(SECRET), flipped);
    let told = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{told}");
    assert!(wrong.stdout.is_empty() && told.contains("the body was changed"), "{told}");
    assert_eq!(webhook(&["verify", "--signature", SIGNATURE, "-"], None, BODY).status.code(), Some(2), "no secret");
}

#[test]
fn help_does_not_show_the_secret_of_the_environment() {
    let help = webhook(&["sign", "--help"], Some(SECRET), b"");
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(text.contains("ENTREGA_WEBHOOK_SECRET") && !text.contains(SECRET), "{text}");
}
