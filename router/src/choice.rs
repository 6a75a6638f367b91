//! From a choice's tokens to what its user sees.
//!
//! Tokens are taken one by one even if a round brings several, so where the text ends (and how
//! many tokens that took) does not depend on what a draft had guessed.

use std::sync::Arc;

use foretoken_artifacts::{IncrementalDecoder, StopMatcher};
use foretoken_protocol::generate::{EmittedToken, FinishReason, TokenLogprobs};
use foretoken_speculation::TokenId;
use futures::{Stream, stream};

use crate::{
    error::ApiError,
    generation::{Generation, Progress, Tally},
    request::{Job, Shape},
};

/// Why a choice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model's end of text.
    End,
    /// A token that the user named.
    StopToken(TokenId),
    /// The user's stop string of this index.
    StopString(usize),
    /// As long as it may be.
    Length,
}

impl Finish {
    /// `finish_reason` of the API.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::End | Self::StopToken(_) | Self::StopString(_) => "stop",
            Self::Length => "length",
        }
    }
}

/// A token with what is to be told of it.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) token: TokenId,
    pub(crate) logprobs: TokenLogprobs,
}

/// What is new since the last piece.
#[derive(Clone, Debug, Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// Ids, if asked for.
    pub(crate) tokens: Vec<TokenId>,
    /// Log-probabilities of the tokens, if asked for.
    pub(crate) logprobs: Vec<Told>,
}

/// News of a choice.
#[derive(Debug)]
pub(crate) enum News {
    /// A target has its prompt in; the first news of each.
    Begun(Begun),
    /// What came of it.
    Update(Update),
}

/// What is known of a choice once its target has the prompt in.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) index: usize,
    pub(crate) fingerprint: Option<String>,
    /// Log-probabilities of its prompt, if a stream is to tell them.
    pub(crate) prompt_logprobs: Vec<TokenLogprobs>,
}

/// What came of a choice.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) index: usize,
    pub(crate) piece: Piece,
    /// Tokens of the choice so far.
    pub(crate) told: u32,
    /// Set in the last update, with what the choice took.
    pub(crate) finish: Option<(Finish, Box<Tally>)>,
}

/// One choice of a request.
struct Choice {
    job: Arc<Job>,
    index: usize,
    /// Whether that has been told.
    is_begun: bool,
    decoder: IncrementalDecoder,
    matcher: StopMatcher,
    /// Tokens told so far, and those of them that a draft had proposed.
    told: u32,
    accepted: u32,
    /// Set by a token that ends the output: the target says the same in a moment, and what the
    /// output took.
    ending: Option<Finish>,
    /// Text of the current token.
    fresh: String,
}

impl Choice {
    fn new(job: Arc<Job>, index: usize) -> Self {
        let output = &job.output;
        let tokenizer = Arc::clone(&job.model.tokenizer);
        let decoder = IncrementalDecoder::new(tokenizer, output.skip_special);
        Self {
            // A completion is the rest of a text, an answer a text of its own.
            decoder: match job.shape {
                Shape::Completion => decoder.after(&job.prompt_of(index).tokens),
                Shape::Chat => decoder,
            },
            matcher: StopMatcher::new(Arc::clone(&output.stop), output.include_stop),
            told: 0,
            accepted: 0,
            ending: None,
            fresh: String::new(),
            job,
            index,
            is_begun: false,
        }
    }

    /// Takes the tokens of a round. `Some`: the output ends here, and what follows does not count.
    fn push(&mut self, tokens: Vec<EmittedToken>, piece: &mut Piece) -> Option<Finish> {
        if self.job.output.nothing {
            return Some(Finish::Length);
        }
        for emitted in tokens {
            if self.ending.is_some() {
                return self.ending.take();
            }
            if let Some(index) = self.push_one(emitted, piece) {
                return Some(Finish::StopString(index));
            }
        }
        None
    }

    /// Takes a token; `Some` is the stop string that it completes.
    fn push_one(&mut self, emitted: EmittedToken, piece: &mut Piece) -> Option<usize> {
        let token = emitted.token;
        self.told += 1;
        self.accepted += u32::from(emitted.accepted);
        if self.job.output.wants_ids() {
            piece.tokens.push(token);
        }
        if let Some(logprobs) = emitted.logprobs {
            piece.logprobs.push(Told { token, logprobs });
        }
        if self.job.ends_output(token) {
            self.ending = Some(self.stopped_by(token));
            if !self.job.output.include_stop {
                return None;
            }
        }
        self.fresh.clear();
        self.decoder.push(token, &mut self.fresh);
        self.show(piece)
    }

    /// Shows the current token's text as far as that is certain; `Some` is the stop string that it
    /// completes, which within the first `min_tokens` tokens none does.
    fn show(&mut self, piece: &mut Piece) -> Option<usize> {
        if self.told <= self.job.sampling.min_tokens {
            self.matcher.pass(&self.fresh, &mut piece.text);
            return None;
        }
        self.matcher.push(&self.fresh, &mut piece.text)
    }

    fn stopped_by(&self, token: TokenId) -> Finish {
        if self.job.model.is_eos(token) && !self.job.ignore_eos {
            Finish::End
        } else {
            Finish::StopToken(token)
        }
    }

    /// Adds what was held back, unless a stop string has ended the output.
    fn flush(&mut self, finish: Finish, piece: &mut Piece) -> Finish {
        if matches!(finish, Finish::StopString(_)) {
            return finish;
        }
        self.fresh.clear();
        self.decoder.finish(&mut self.fresh);
        if let Some(index) = self.show(piece) {
            return Finish::StopString(index);
        }
        self.matcher.finish(&mut piece.text);
        finish
    }

    fn begin(&mut self, generation: &mut Generation) -> News {
        self.is_begun = true;
        let fingerprint = generation.tally().fingerprint.clone();
        let prompt_logprobs = if self.job.output.stream {
            generation.take_prompt_logprobs()
        } else {
            Vec::new()
        };
        News::Begun(Begun {
            index: self.index,
            fingerprint,
            prompt_logprobs,
        })
    }

    fn update(&mut self, progress: Progress, generation: &mut Generation) -> Update {
        let mut piece = Piece::default();
        let finish = match progress {
            Progress::Tokens(tokens) => self.push(tokens, &mut piece),
            Progress::Finished(FinishReason::Stop(token)) => Some(self.stopped_by(token)),
            Progress::Finished(FinishReason::Length) => Some(Finish::Length),
        };
        let finish = finish
            .map(|finish| self.flush(finish, &mut piece))
            .map(|finish| {
                generation.end(finish.reason(), self.told, self.accepted);
                (finish, Box::new(generation.tally().clone()))
            });
        Update {
            index: self.index,
            piece,
            told: self.told,
            finish,
        }
    }
}

/// The choice's news until it ends or fails. Dropping the stream cancels the choice.
pub(crate) fn news(
    job: Arc<Job>,
    index: usize,
    generation: Generation,
) -> impl Stream<Item = Result<News, ApiError>> + Send {
    // Boxed, since the state is moved with every item.
    let state = Some(Box::new((Choice::new(job, index), generation)));
    stream::unfold(state, |state| async move {
        let mut state = state?;
        let (choice, generation) = &mut *state;
        let news = if choice.is_begun {
            let progress = generation.next().await;
            progress.map(|progress| News::Update(choice.update(progress, generation)))
        } else {
            let started = generation.start().await;
            started.map(|()| choice.begin(generation))
        };
        let ended = match &news {
            Ok(News::Begun(_)) => false,
            Ok(News::Update(update)) => update.finish.is_some(),
            Err(_) => true,
        };
        Some((news, (!ended).then_some(state)))
    })
}
