//! What a request has to satisfy before the engine thread sees it.

use foretoken_engine::runner::RunnerInfo;
use foretoken_protocol::generate::{GenerateError, GenerateRequest};
use foretoken_speculation::{TokenId, policy::Policy};

use crate::config::TargetConfig;

/// Most alternatives per token that are reported.
const MAX_LOGPROBS: u32 = 128;

/// Checks a request; gives the policy it is to be served with.
pub(crate) fn request(
    request: &GenerateRequest,
    config: &TargetConfig,
    info: &RunnerInfo,
) -> Result<Policy, GenerateError> {
    let invalid = |message: String| Err(GenerateError::Invalid(message));
    let len = request.tokens.len();
    if len == 0 {
        return invalid("the prompt is empty: it needs at least one token".into());
    }
    if request.prompt_len == 0 || request.prompt_len > len {
        return invalid(format!(
            "prompt_len is {}, but must be 1 to {len}",
            request.prompt_len
        ));
    }
    if request.prompt_len >= info.max_positions {
        return invalid(format!(
            "the prompt has {} tokens and the model {} positions: shorten the prompt",
            request.prompt_len, info.max_positions
        ));
    }
    let unknown = |token: &&TokenId| token.index() >= info.vocab_size;
    if let Some(token) = request.tokens.iter().find(unknown) {
        let size = info.vocab_size;
        return invalid(format!("token {token} is outside the vocabulary of {size}"));
    }
    if let Err(error) = request.sampling.validate() {
        return invalid(error.to_string());
    }
    if let Some(top) = request.logprobs.filter(|&top| top > MAX_LOGPROBS) {
        return invalid(format!(
            "logprobs is {top}, but may be at most {MAX_LOGPROBS}"
        ));
    }
    config
        .policy_of(request.policy.as_deref(), request.lookahead)
        .or_else(|error| invalid(error.to_string()))
}
