//! ptrace alone, without a kernel.

mod guests;

#[test]
fn ptrace_runs_guests() {
    let platform = guests::platform(sentry_platform::Kind::Ptrace);
    guests::calls_faults_forks_and_threads(&platform);
    guests::stub_answers_and_copies(&platform, false);
    guests::the_tracer_sleeps(&platform);
    guests::kicks_right_after_answers(&platform);
    guests::trapped_call_cost(&platform);
}
