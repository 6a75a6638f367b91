//! A target without endpoints that proposes for itself.

use foretoken_protocol::Address;
use foretoken_target::{OnLossName, PolicyName, TargetConfig};

use super::rig::*;

#[tokio::test]
async fn the_shipped_target_proposes_for_itself_without_changing_a_token() {
    for policy in [PolicyName::Speculative, PolicyName::Ssd] {
        let config = TargetConfig {
            listen: vec![Address::loopback(0)],
            policy,
            on_loss: OnLossName::Local,
            ..TargetConfig::default()
        };
        let (client, target) = target(config, shipped("target"));
        let is_accepted = async |number: u64| {
            let mut accepted = 0;
            for (seed, temperature) in [0.0, 0.0, 0.7, 0.7, 1.0, 1.0].into_iter().enumerate() {
                let mut asked = request(6 * number + seed as u64, 48);
                asked.sampling.temperature = temperature;
                if seed % 2 == 1 {
                    asked.sampling.repetition_penalty = 1.1;
                    asked.sampling.presence_penalty = 0.3;
                    asked.sampling.frequency_penalty = 0.2;
                }
                let (tokens, stats) = output(&client, asked.clone()).await;
                assert_eq!(tokens, plain(&client, asked).await, "at {temperature}");
                accepted += stats.accepted;
            }
            (accepted > 0).then_some(())
        };
        eventually("is anything accepted", is_accepted).await;
        target.end().await;
    }
}
