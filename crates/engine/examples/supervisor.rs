//! PID 1 of the sandboxes that this crate's tests start: the supervisor, as the daemon's own binary has it.

fn main() {
    let Ok(entered) = isolation::container::enter() else {
        // Whoever started it has been told why.
        std::process::exit(1)
    };
    std::process::exit(supervisor::run(supervisor::Handles {
        state: entered.state,
        control: entered.control,
        model: Some(entered.model),
        shim: entered.shim,
        doors: entered.doors.map(|doors| supervisor::Doors {
            sockets: doors.sockets,
            diag: doors.diag,
        }),
        has_ca: entered.has_ca,
        ready: Some(entered.ready),
        limits: entered.limits,
    }))
}
