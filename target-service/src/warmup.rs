//! What steps cost, measured before anybody is served.

use std::time::Duration;

use foretoken_engine::batch::Engine;
use foretoken_speculation::control::StepCost;

/// No measurement is begun after this.
const BUDGET: Duration = Duration::from_millis(1500);

/// Measures the cost of steps by their rows. The curve is refined while serving.
pub(crate) fn measure(engine: &mut Engine) -> StepCost {
    let measured = engine.measure_steps(BUDGET).unwrap_or_else(|error| {
        tracing::error!(%error, "the warm-up lost its sequence");
        Vec::new()
    });
    tracing::info!(?measured, "step costs measured");
    StepCost::new(measured)
}
