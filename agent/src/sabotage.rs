//! Lists the ways in which foldlog's own tests break this crate on purpose: see
//! [`foldlog_codec::sabotage`].

foldlog_codec::breakages! {
    // Conversations.
    AnswerAskedAgain = "answer-asked-again": "The loop sends a request again although its answer is recorded.",
    CallsRunTwice = "calls-run-twice": "The loop runs each call of an answer twice.",
    SiblingSkipped = "sibling-skipped": "A call does not run if a call of the same answer is suspended.",
}
