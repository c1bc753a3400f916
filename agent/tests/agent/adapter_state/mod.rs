//! States of adapters whose providers keep sessions of their own: they are captured as records,
//! survive every reader, and are resumed only if that is valid.

mod capturing;
mod evaluating;
mod resuming;
mod states;
mod validating;
mod world;
