//! Chance that a test can repeat: the same seed always gives the same losses.

/// A small generator, splitmix64. It needs to be repeatable and even, not hard to guess.
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

/// In what pieces a power cut may tear a page that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grain {
    /// It is there or not.
    Page,
    /// Each of its sectors is.
    Sector,
    /// Each of its bytes is.
    Byte,
}

impl Grain {
    /// Half of all disks keep pages whole.
    pub(super) fn draw(chance: &mut Chance) -> Self {
        match chance.next() >> 62 {
            0 => Self::Sector,
            1 => Self::Byte,
            _ => Self::Page,
        }
    }

    /// How long a piece is that is there or not.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Page => 4096,
            Self::Sector => 512,
            Self::Byte => 1,
        }
    }
}

/// What happens to the things that were not synced.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// None of them reached the disk.
    AllOld,
    /// All of them did.
    AllNew,
    /// Each did or did not.
    Mixed,
}

impl Fate {
    /// The two extremes are rare among many independent coins, so they are drawn on purpose.
    pub(super) fn draw(chance: &mut Chance) -> Self {
        match chance.next() >> 61 {
            0 => Self::AllOld,
            1 => Self::AllNew,
            _ => Self::Mixed,
        }
    }

    /// Whether the next thing reached the disk.
    pub(super) fn reached(self, chance: &mut Chance) -> bool {
        match self {
            Self::AllOld => false,
            Self::AllNew => true,
            Self::Mixed => chance.coin(),
        }
    }
}
