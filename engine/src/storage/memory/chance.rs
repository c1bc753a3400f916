//! Chance that a test can repeat: the same seed always gives the same losses.

/// Generates random numbers by splitmix64, which is repeatable and even; nothing here needs to be hard to guess.
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

/// Names the pieces in which a power cut may tear a page that was not synced.
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
    /// Draws a grain. Half of all disks keep pages whole.
    pub(super) fn draw(chance: &mut Chance) -> Self {
        match chance.next() >> 62 {
            0 => Self::Sector,
            1 => Self::Byte,
            _ => Self::Page,
        }
    }

    /// Returns the length of a piece in bytes.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Page => 4096,
            Self::Sector => 512,
            Self::Byte => 1,
        }
    }
}

/// Says how much of what was not synced reached the disk.
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
    /// Draws a fate. The two extremes are rare among many independent coins, so they have a share of their own.
    pub(super) fn draw(chance: &mut Chance) -> Self {
        match chance.next() >> 61 {
            0 => Self::AllOld,
            1 => Self::AllNew,
            _ => Self::Mixed,
        }
    }

    /// Returns whether the next change reached the disk.
    pub(super) fn draw_reached(self, chance: &mut Chance) -> bool {
        match self {
            Self::AllOld => false,
            Self::AllNew => true,
            Self::Mixed => chance.coin(),
        }
    }
}
