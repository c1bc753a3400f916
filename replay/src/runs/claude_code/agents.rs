//! Tells the nodes of sub-agents from those of the transcript, and finds the call that started each sub-agent.

use std::collections::{HashMap, HashSet, VecDeque};

use foldlog::SmolStr;

use super::scan::{NodeKind, Scan};

/// Most levels of sub-agents that are child sessions of each other's.
const DEPTH_MAX: usize = 8;

/// The nodes of the transcript itself, or of one sub-agent.
#[derive(Debug, Default)]
pub(super) struct Talk {
    /// Name of the sub-agent; `None` for the transcript itself.
    pub(super) agent: Option<SmolStr>,
    /// The nodes, in order.
    pub(super) nodes: Vec<usize>,
    /// Sub-agents that calls started, by the call's id, as places among the session's talks.
    pub(super) started: HashMap<SmolStr, Vec<usize>>,
}

/// Holds the talks of a session. The first one is the transcript itself.
#[derive(Debug)]
pub(super) struct Talks {
    pub(super) all: Vec<Talk>,
    /// Sub-agents without a call.
    pub(super) alone: Vec<usize>,
}

impl Talks {
    /// Divides the nodes of the files for which `belongs` holds.
    pub(super) fn of(scan: &Scan, belongs: &dyn Fn(usize) -> bool) -> Talks {
        let mut all = vec![Talk::default()];
        let mut by_agent: HashMap<SmolStr, usize> = HashMap::new();
        let mut by_uuid: HashMap<&SmolStr, usize> = HashMap::new();
        for (place, node) in scan.nodes.iter().enumerate().filter(|(_, node)| belongs(node.source)) {
            let own = scan.sources.get(node.source).and_then(|source| source.agent.as_ref());
            let named = node.agent.as_ref().filter(|_| node.sidechain || own.is_some()).or(own);
            let talk = match named {
                Some(agent) => *by_agent.entry(agent.clone()).or_insert_with(|| {
                    all.push(Talk { agent: Some(agent.clone()), ..Talk::default() });
                    all.len() - 1
                }),
                None if node.sidechain => {
                    let parent = node.parent.as_ref().and_then(|parent| by_uuid.get(parent)).copied();
                    parent.filter(|talk| *talk > 0).unwrap_or_else(|| {
                        let agent = Some(format!("sidechain-{}", all.len()).into());
                        all.push(Talk { agent, ..Talk::default() });
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

    /// Finds the call that started each sub-agent.
    fn find_calls(&mut self, scan: &Scan) {
        let mut callers: HashMap<&SmolStr, usize> = HashMap::new();
        let mut prompted: HashMap<u64, VecDeque<(&SmolStr, usize)>> = HashMap::new();
        for (talk, nodes) in self.all.iter().map(|talk| &talk.nodes).enumerate() {
            for (call, prompt) in
                nodes.iter().filter_map(|node| scan.nodes.get(*node)).flat_map(|it| &it.calls)
            {
                callers.entry(call).or_insert(talk);
                if let Some(prompt) = prompt {
                    prompted.entry(*prompt).or_default().push_back((call, talk));
                }
            }
        }
        let mut found: Vec<Option<(&SmolStr, usize)>> = vec![None; self.all.len()];
        let mut taken: HashSet<&SmolStr> = HashSet::new();
        for (talk, found) in self.all.iter().zip(&mut found).skip(1) {
            let nodes = || talk.nodes.iter().filter_map(|node| scan.nodes.get(*node));
            // A sub-agent's first line may follow the message with the call.
            let followed = nodes().next().and_then(|first| {
                let parent = scan.nodes.get(*scan.by_uuid.get(first.parent.as_ref()?)?)?;
                parent.calls.first().map(|(call, _)| call)
            });
            let main =
                nodes().next().and_then(|node| scan.sources.get(node.source)).map(|source| source.main);
            let named = main.zip(talk.agent.clone()).and_then(|agent| scan.started.get(&agent));
            let named = named.into_iter().chain(nodes().filter_map(|node| node.parent_call.as_ref()));
            *found =
                named.chain(followed).find_map(|call| callers.get_key_value(call)).map(|(c, t)| (*c, *t));
            taken.extend(found.iter().map(|(call, _)| *call));
        }
        for (place, found) in found.iter_mut().enumerate().skip(1).filter(|(_, found)| found.is_none()) {
            let nodes = self.all.get(place).into_iter().flat_map(|talk| &talk.nodes);
            let said = nodes.filter_map(|node| scan.nodes.get(*node)).find(|it| it.kind == NodeKind::User);
            let Some(calls) = said.and_then(|node| prompted.get_mut(&node.said?)) else { continue };
            while let Some((call, talk)) = calls.pop_front() {
                if talk != place && taken.insert(call) {
                    *found = Some((call, talk));
                    break;
                }
            }
        }
        let found: Vec<_> = found.into_iter().map(|it| it.map(|(call, talk)| (call.clone(), talk))).collect();
        self.attach(found);
    }

    /// Attaches sub-agents to calls, as far as a walk from the transcript itself reaches them.
    fn attach(&mut self, found: Vec<Option<(SmolStr, usize)>>) {
        let without: Vec<usize> = (0..found.len()).filter(|place| found.get(*place) == Some(&None)).collect();
        let mut below: Vec<Vec<(SmolStr, usize)>> = vec![Vec::new(); found.len()];
        for (place, (call, talk)) in found.into_iter().enumerate().filter_map(|(at, it)| Some((at, it?))) {
            if let Some(below) = below.get_mut(talk) {
                below.push((call, place));
            }
        }
        let mut is_reached = vec![false; self.all.len()];
        // First those that no call started, then those whose calls lead in a circle.
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
