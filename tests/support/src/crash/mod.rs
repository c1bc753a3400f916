//! The required remains of a crash: the oracle of the crash simulator. It knows what was attempted,
//! acknowledged and promised, and shares no code with the engine.

mod calls;
mod compacted;
mod machine;
mod memory;
mod mortal;
mod past;
mod slices;
mod twin;
mod waiting;

pub use calls::{
    About, Act, After, Call, DAY_US, End, Errand, Found, MOMENT_US, Moment, Next, OpenCall, UnsettledCall,
    Waits,
};
pub use compacted::{Compactions, draw_options};
pub use machine::{BOOT, CHANGES, FrameAt, Machine, OTHER_BOOT, count, large_note, step, write_steps};
pub use memory::{Lost, Promise, Remembered, SessionMemory};
pub use mortal::Mortal;
pub use past::Live;
pub use slices::{Change, Slices};
pub use twin::Twin;
pub use waiting::{Again, Asked, Stands, Verdict};

/// A repeatable random generator: the same seed always gives the same numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Chance {
    state: u64,
}

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance { state: seed }
    }

    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below a bound, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// Returns true with this probability in percent.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let len = from.len() as u64;
        &from[usize::try_from(self.below(len)).expect("a slice is no longer than memory")]
    }

    /// Returns a text of lower-case letters.
    pub fn text(&mut self, len: u64) -> String {
        (0..len).map(|_| char::from(b'a' + (self.below(26) as u8))).collect()
    }
}
