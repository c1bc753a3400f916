//! Real providers over loopback. Servers that speak the protocols of OpenAI and Anthropic answer
//! like the real ones, misbehave on request, and refuse every history that the real ones refuse.

// The modules below are all tests, or called by nothing else.

mod answers;
mod asking;
mod failures;
mod histories;
mod loops;
mod secrets;
mod server;
mod shortening;
mod waiting;
