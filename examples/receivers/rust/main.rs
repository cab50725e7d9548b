//! The receiver as a program of its own; all of it is in `receiver.rs`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    entrega_receiver::main()
}
