//! The mark of a call's programs: a string in their environment by which all of them are found,
//! wherever they have moved.

use std::ffi::OsString;
use std::fs;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::cgroup::Cgroup;
use super::{kill_each, search_until_quiet};
use crate::generator::Generator;

/// Variable in the environment of every program of a call. Its value is the marks of the call and
/// of the calls around it, of any session and process, separated by commas.
pub(crate) const VARIABLE: &str = "FOLDLOG_CALL";

/// Marks the programs of one run of a call: the session's id, the sequence number of the start
/// record and a random number in 16 hexadecimal digits, separated by colons. A re-run of the call
/// has another mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ProgramMark(String);

impl ProgramMark {
    /// Draws a mark. `call` is the session's id and the sequence number of the start record,
    /// separated by a colon.
    pub(crate) fn draw(call: &str) -> ProgramMark {
        let drawn = Generator::from_entropy().next_u64();
        ProgramMark(format!("{call}:{drawn:016x}"))
    }

    /// Returns whether the mark has the form that [`draw`](ProgramMark::draw) gives it. A log can
    /// come from anywhere, and a mark of another form could match unrelated processes.
    pub(crate) fn is_valid(&self) -> bool {
        let parts: Vec<&str> = self.0.split(':').collect();
        let [session, start, drawn] = parts[..] else { return false };
        Uuid::try_parse(session).is_ok()
            && start.parse::<u64>().is_ok()
            && drawn.len() == 16
            && u64::from_str_radix(drawn, 16).is_ok()
    }

    /// Returns the value of [`VARIABLE`] for a program: the mark, after those of this process
    /// itself if it is a program of another call.
    pub(crate) fn for_environment(&self) -> OsString {
        let Some(mut marks) = std::env::var_os(VARIABLE) else { return OsString::from(&self.0) };
        marks.push(",");
        marks.push(&self.0);
        marks
    }

    /// Returns the name of the call's control group.
    pub(crate) fn group_name(&self) -> String {
        format!("foldlog-{}", self.0.replace(':', "-"))
    }

    /// Returns whether an environment contains the mark. In the form of `/proc`, each variable ends
    /// with a NUL.
    fn is_in(&self, environment: &[u8]) -> bool {
        let variables = environment.split(|byte| *byte == 0);
        let own =
            variables.filter_map(|variable| variable.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"="));
        own.flat_map(|marks| marks.split(|byte| *byte == b',')).any(|mark| mark == self.0.as_bytes())
    }

    /// Returns whether a process has the mark. A process that has ended has none.
    fn is_on(&self, process: i32) -> bool {
        fs::read(format!("/proc/{process}/environ")).is_ok_and(|environment| self.is_in(&environment))
    }

    /// Kills each process that has the mark, except this one. Returns whether there was any.
    fn kill_all(&self) -> bool {
        kill_each(&|process| self.is_on(process))
    }
}

/// Kills the processes that have the mark or are in the control group, and waits until they have
/// ended or `until` has passed. Returns `false` if one remains.
pub(crate) fn end_marked(mark: &ProgramMark, cgroup: Option<&Cgroup>, until: Instant) -> bool {
    let is_quiet = search_until_quiet(until, || {
        if let Some(cgroup) = cgroup {
            cgroup.kill();
        }
        mark.kill_all() || cgroup.is_some_and(Cgroup::is_populated)
    });
    if let Some(cgroup) = cgroup {
        cgroup.remove();
    }
    is_quiet
}

#[cfg(test)]
impl ProgramMark {
    /// Returns a mark that ends with `drawn`.
    pub(crate) fn for_tests(drawn: u64) -> ProgramMark {
        ProgramMark(format!("{}:7:{drawn:016x}", Uuid::from_u128(1)))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_among_others_and_not_in_part() {
        let mark = ProgramMark::for_tests(255);
        assert!(mark.is_valid());
        let environment = |marks: &str| format!("PATH=/bin\0{VARIABLE}={marks}\0HOME=/\0").into_bytes();
        assert!(mark.is_in(&environment(&mark.0)));
        assert!(mark.is_in(&environment(&format!("another,{}", mark.0))));
        assert!(!mark.is_in(&environment(&format!("{}0", mark.0))));
        assert!(!mark.is_in(&environment("")));
        assert!(!mark.is_in(format!("X{VARIABLE}={}\0", mark.0).as_bytes()));
        for bad in ["", "::", "a:1:00000000000000ff", &mark.0[1..], &format!("{}0", mark.0)] {
            assert!(!ProgramMark(bad.to_owned()).is_valid(), "{bad}");
        }
    }
}
