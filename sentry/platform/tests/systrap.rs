//! systrap alone, without a kernel.

mod guests;

#[test]
fn systrap_runs_guests() {
    let platform = guests::platform(sentry_platform::Kind::Systrap);
    guests::calls_faults_forks_and_threads(&platform);
    guests::stub_answers_and_copies(&platform, true);
    guests::local_memory_calls_are_logged(&platform);
    guests::kicks_right_after_answers(&platform);
    guests::trapped_call_cost(&platform);
}
