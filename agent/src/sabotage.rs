//! Lists the ways in which foldlog's own tests break this crate on purpose: see
//! [`foldlog_codec::sabotage`].

foldlog_codec::breakages! {
    // Conversations.
    AnswerAskedAgain = "answer-asked-again": "The loop asks a provider again where it is to go on with a recorded answer.",
    CallsRunTwice = "calls-run-twice": "The loop runs each call of an answer twice.",
    SiblingSkipped = "sibling-skipped": "A call beside one that waits for somebody does not run.",
}
