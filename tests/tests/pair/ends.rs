//! Where sequences can be no longer, on either side.

use foretoken_engine::sim::SimOptions;
use foretoken_protocol::generate::GenerateRequest;
use foretoken_target::SsdConfig;

use super::{
    rig::*,
    ssd::{WAYS, idle, quick, slow},
};

/// Positions of the target. Prompts take 24.
const TARGET: usize = 64;

#[tokio::test]
async fn however_ssd_drafts_outputs_end_where_plain_decoding_does() {
    let folder = tempfile::tempdir().expect("a folder");
    // More positions than the target has, as many, fewer, and hardly any beyond the prompt.
    for positions in [128, TARGET, TARGET - 9, 34] {
        let address = socket(&folder, &format!("draft-{positions}"));
        let (endpoint, port) = observed(&address, runner(of(quick(0.8), positions)));
        for (fallback, delivery) in WAYS {
            let mut config = with_endpoint(&address);
            config.ssd = SsdConfig {
                fallback,
                delivery,
                ..SsdConfig::default()
            };
            let (client, target) = target(config, runner(of(slow(), TARGET)));
            warm(&client).await;
            let way = format!("{positions} positions, {fallback:?}, {delivery:?}");
            let some_accepted = async |seed| {
                let longest = request(seed, 1000);
                let ahead = GenerateRequest {
                    policy: Some("SSD".into()),
                    ..longest.clone()
                };
                let (tokens, stats) = output(&client, ahead).await;
                assert_eq!(tokens.len(), TARGET - longest.prompt_len, "{way}");
                assert_eq!(tokens, plain(&client, longest).await, "{way}");
                (stats.accepted > 0).then_some(())
            };
            eventually(&format!("a token is accepted: {way}"), some_accepted).await;
            idle(&client, port).await;
            target.end().await;
        }
        endpoint.end().await;
    }
}

/// The same model with so many positions.
fn of(options: SimOptions, max_positions: usize) -> SimOptions {
    SimOptions {
        max_positions,
        ..options
    }
}
