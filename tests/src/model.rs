//! A naive model of a session: plain vectors, no code of the engine's.
