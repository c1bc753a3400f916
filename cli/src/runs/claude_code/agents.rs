//! Separates the nodes of sub-agents from those of the transcript, and finds the call that started
//! each sub-agent.

use std::collections::{HashMap, HashSet, VecDeque};

use foldlog::SmolStr;

use super::scan::{CallPlace, NodeKind, TranscriptScan};

/// Maximum nesting of sub-agents as child sessions.
const DEPTH_MAX: usize = 8;

/// Nodes of the transcript itself, or of one sub-agent (a *talk*).
#[derive(Debug, Default)]
pub(super) struct AgentThread {
    /// Name of the sub-agent; `None` for the transcript itself.
    pub(super) agent: Option<SmolStr>,
    /// The nodes, in order.
    pub(super) nodes: Vec<usize>,
    /// Sub-agents that calls started, as indices into the session's talks.
    pub(super) started: HashMap<CallPlace, Vec<usize>>,
}

impl AgentThread {
    /// Returns the digest of the sub-agent's first prompt.
    fn first_prompt_digest(&self, scan: &TranscriptScan) -> Option<u64> {
        let mut nodes = self.nodes.iter().filter_map(|node| scan.nodes.get(*node));
        nodes.find(|node| node.kind == NodeKind::User)?.said
    }
}

/// The calls of a session's talks.
struct Callers<'a> {
    scan: &'a TranscriptScan,
    /// Calls by id, in the order of their nodes, each with its talk.
    by_id: HashMap<&'a SmolStr, Vec<(CallPlace, usize)>>,
    /// Calls whose sub-agent is already known.
    taken: HashSet<CallPlace>,
}

impl Callers<'_> {
    /// Returns the call of a sub-agent that a line names, or else the call that the sub-agent's
    /// first line follows.
    fn starting_call(&self, talk: &AgentThread) -> Option<(CallPlace, usize)> {
        let scan = self.scan;
        let nodes = || talk.nodes.iter().filter_map(|node| scan.nodes.get(*node));
        let first = nodes().next()?;
        let main = scan.sources.get(first.source).map(|source| source.main);
        let named = main.zip(talk.agent.clone()).and_then(|agent| scan.started.get(&agent));
        let named = named.map(|(call, time_us)| (call, *time_us)).into_iter();
        let own = nodes().filter_map(|node| Some((node.parent_call.as_ref()?, node.time_us)));
        let said = talk.first_prompt_digest(scan);
        named.chain(own).find_map(|(call, time_us)| self.pick(call, time_us, said)).or_else(|| {
            let parent = scan.parent_of(first)?;
            let (call, _) = scan.nodes.get(parent)?.calls.first()?;
            let calls = self.by_id.get(call)?;
            calls.iter().find(|(at, _)| at.node == parent).or(calls.first()).copied()
        })
    }

    /// Selects one of the calls with an id. Prefers calls with the prompt `said`. Of these, takes
    /// the last message at or before `time_us`, and its first call that has no sub-agent yet.
    fn pick(&self, id: &SmolStr, time_us: i64, said: Option<u64>) -> Option<(CallPlace, usize)> {
        let calls = self.by_id.get(id)?;
        if let [only] = calls.as_slice() {
            return Some(*only);
        }
        let node_of = |at: &CallPlace| self.scan.nodes.get(at.node);
        let told = |(at, _): &&(CallPlace, usize)| {
            let prompt = node_of(at).and_then(|node| node.calls.get(at.place)?.1);
            said.is_some() && prompt == said
        };
        let is_told = calls.iter().any(|call| told(&call));
        let fit: Vec<_> = calls.iter().filter(|call| !is_told || told(call)).collect();
        let is_past = |at: &CallPlace| node_of(at).is_some_and(|node| node.time_us <= time_us);
        let last = fit.iter().rev().find(|(at, _)| is_past(at)).or(fit.first())?;
        let message = node_of(&last.0).and_then(|node| node.message.as_ref());
        let is_of_message = |at: &CallPlace| {
            at.node == last.0.node
                || (message.is_some() && node_of(at).and_then(|node| node.message.as_ref()) == message)
        };
        let free = fit.iter().find(|(at, _)| is_of_message(at) && !self.taken.contains(at));
        Some(**free.unwrap_or(last))
    }
}

/// The talks of a session. The first one is the transcript itself.
#[derive(Debug)]
pub(super) struct Talks {
    pub(super) all: Vec<AgentThread>,
    /// Sub-agents without a call.
    pub(super) alone: Vec<usize>,
}

impl Talks {
    /// Splits the nodes of the files that pass `belongs` into talks.
    pub(super) fn from_scan(scan: &TranscriptScan, belongs: &dyn Fn(usize) -> bool) -> Talks {
        let mut all = vec![AgentThread::default()];
        let mut by_agent: HashMap<SmolStr, usize> = HashMap::new();
        let mut by_uuid: HashMap<&SmolStr, usize> = HashMap::new();
        for (place, node) in scan.nodes.iter().enumerate().filter(|(_, node)| belongs(node.source)) {
            let own = scan.sources.get(node.source).and_then(|source| source.agent.as_ref());
            let named = node.agent.as_ref().filter(|_| node.sidechain || own.is_some()).or(own);
            let talk = match named {
                Some(agent) => *by_agent.entry(agent.clone()).or_insert_with(|| {
                    all.push(AgentThread { agent: Some(agent.clone()), ..AgentThread::default() });
                    all.len() - 1
                }),
                None if node.sidechain => {
                    let parent = node.parent.as_ref().and_then(|parent| by_uuid.get(parent)).copied();
                    parent.filter(|talk| *talk > 0).unwrap_or_else(|| {
                        let agent = Some(format!("sidechain-{}", all.len()).into());
                        all.push(AgentThread { agent, ..AgentThread::default() });
                        all.len() - 1
                    })
                }
                None => 0,
            };
            if let Some(uuid) = &node.uuid {
                by_uuid.insert(uuid, talk);
            }
            if let Some(talk) = all.get_mut(talk) {
                talk.nodes.push(place);
            }
        }
        let mut talks = Talks { all, alone: Vec::new() };
        talks.find_calls(scan);
        talks
    }

    fn find_calls(&mut self, scan: &TranscriptScan) {
        let mut callers = Callers { scan, by_id: HashMap::new(), taken: HashSet::new() };
        let mut prompted: HashMap<u64, VecDeque<(CallPlace, usize)>> = HashMap::new();
        for (talk, nodes) in self.all.iter().map(|talk| &talk.nodes).enumerate() {
            for (at, (call, prompt)) in nodes.iter().flat_map(|node| {
                let calls = scan.nodes.get(*node).into_iter().flat_map(|node| &node.calls);
                scan.calls_of(*node).zip(calls)
            }) {
                callers.by_id.entry(call).or_default().push((at, talk));
                if let Some(prompt) = prompt {
                    prompted.entry(*prompt).or_default().push_back((at, talk));
                }
            }
        }
        let mut found: Vec<Option<(CallPlace, usize)>> = vec![None; self.all.len()];
        for (talk, found) in self.all.iter().zip(&mut found).skip(1) {
            *found = callers.starting_call(talk);
            callers.taken.extend(found.iter().map(|(call, _)| *call));
        }
        for (place, found) in found.iter_mut().enumerate().skip(1).filter(|(_, found)| found.is_none()) {
            let Some(said) = self.all.get(place).and_then(|talk| talk.first_prompt_digest(scan)) else {
                continue;
            };
            let Some(calls) = prompted.get_mut(&said) else { continue };
            while let Some((call, talk)) = calls.pop_front() {
                if talk != place && callers.taken.insert(call) {
                    *found = Some((call, talk));
                    break;
                }
            }
        }
        self.attach(found);
    }

    /// Attaches sub-agents to calls, as far as they are reachable from the transcript itself.
    fn attach(&mut self, found: Vec<Option<(CallPlace, usize)>>) {
        let without: Vec<usize> = (0..found.len()).filter(|place| found.get(*place) == Some(&None)).collect();
        let mut below: Vec<Vec<(CallPlace, usize)>> = vec![Vec::new(); found.len()];
        for (place, (call, talk)) in found.into_iter().enumerate().filter_map(|(at, it)| Some((at, it?))) {
            if let Some(below) = below.get_mut(talk) {
                below.push((call, place));
            }
        }
        let mut is_reached = vec![false; self.all.len()];
        // First the sub-agents without a call, then those whose calls form a cycle.
        for first in without.into_iter().chain(0..is_reached.len()) {
            if is_reached.get(first).copied().unwrap_or(true) {
                continue;
            }
            if first > 0 {
                self.alone.push(first);
            }
            let mut waiting = VecDeque::from([(first, 0)]);
            if let Some(reached) = is_reached.get_mut(first) {
                *reached = true;
            }
            while let Some((talk, depth)) = waiting.pop_front() {
                if depth >= DEPTH_MAX {
                    continue;
                }
                for (call, place) in below.get_mut(talk).map(std::mem::take).unwrap_or_default() {
                    let Some(reached) = is_reached.get_mut(place).filter(|reached| !**reached) else {
                        continue;
                    };
                    *reached = true;
                    if let Some(talk) = self.all.get_mut(talk) {
                        talk.started.entry(call).or_default().push(place);
                    }
                    waiting.push_back((place, depth + 1));
                }
            }
        }
    }
}
