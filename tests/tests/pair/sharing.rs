//! Targets that share an endpoint with too few slots for all of their requests.

use foretoken_draft::DraftConfig;

use super::{
    rig::*,
    ssd::{ahead, quick, slow},
};

#[tokio::test]
async fn a_target_that_comes_late_gets_its_share_of_a_full_endpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let config = DraftConfig {
        listen: vec![address.clone()],
        max_sessions: 2,
        ..DraftConfig::default()
    };
    let endpoint = draft_of(config, runner(quick(0.9)));
    let (early, first) = target(with_endpoint(&address), runner(slow()));
    let (late, second) = target(with_endpoint(&address), runner(slow()));
    warm(&early).await;
    warm(&late).await;
    let has_share = async |seed| {
        let mut held = Vec::new();
        for seed in [3, 7, 11] {
            let stream = early.generate(ahead(request(seed, 400))).await;
            let mut stream = stream.expect("it is accepted");
            let mut tokens = Vec::new();
            reads_ten(&mut stream, &mut tokens).await;
            held.push((stream, tokens));
        }
        // All slots are the first one's now, and more of its requests wait for them.
        let (tokens, stats) = output(&late, ahead(request(seed, 60))).await;
        assert_eq!(tokens, plain(&late, request(seed, 60)).await);
        let (stream, mut tokens) = held.swap_remove(0);
        collect(stream, &mut tokens).await;
        assert_eq!(tokens, plain(&early, request(3, 400)).await);
        (stats.drafted > 0).then_some(())
    };
    eventually("has it a share", has_share).await;
    first.end().await;
    second.end().await;
    endpoint.end().await;
}
