//! Repeatable randomness for tests: the same seed always gives the same losses.

/// Generates random numbers by splitmix64, which is repeatable and uniform. They need not be hard
/// to guess.
#[derive(Debug)]
pub(super) struct Chance {
    state: u64,
}

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }
}

/// The pieces in which a power cut may tear an unsynced page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grain {
    /// The page reached the disk as a whole or not at all.
    Page,
    /// Each sector of the page reached the disk or did not.
    Sector,
    /// Each byte of the page reached the disk or did not.
    Byte,
}

impl Grain {
    /// Draws a grain. Half of all disks never tear pages.
    pub(super) fn draw(chance: &mut Chance) -> Self {
        match chance.next() >> 62 {
            0 => Self::Sector,
            1 => Self::Byte,
            _ => Self::Page,
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Page => 4096,
            Self::Sector => 512,
            Self::Byte => 1,
        }
    }
}

/// How much of the unsynced data reached the disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum PowerCutOutcome {
    /// No change reached the disk.
    AllOld,
    /// Every change reached the disk.
    AllNew,
    /// Each change reached the disk or did not.
    Mixed,
}

impl PowerCutOutcome {
    /// Draws an outcome. The two extremes are rare among many independent coins, so they have a
    /// separate share.
    pub(super) fn draw(chance: &mut Chance) -> Self {
        match chance.next() >> 61 {
            0 => Self::AllOld,
            1 => Self::AllNew,
            _ => Self::Mixed,
        }
    }

    pub(super) fn draw_reached(self, chance: &mut Chance) -> bool {
        match self {
            Self::AllOld => false,
            Self::AllNew => true,
            Self::Mixed => chance.coin(),
        }
    }
}
