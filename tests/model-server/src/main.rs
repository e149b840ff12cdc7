//! `model-server --listen ADDR (--script FILE | --tool-command CMD) --log FILE`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    match model_server::main(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write as _;
            // Where standard error is gone there is nobody left to tell.
            let _told = writeln!(std::io::stderr(), "model-server: {error}");
            ExitCode::from(2)
        }
    }
}
