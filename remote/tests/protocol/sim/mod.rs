//! A store in memory that loses, repeats, delays and refuses requests by a seed or a script, on
//! tokio's paused clock.

pub(crate) mod oracle;
pub(crate) mod world;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use foldlog_remote::compaction::Compaction;
use foldlog_remote::volume::{Extent, VOLUME_BYTES_MAX};
use foldlog_remote::withdrawal::{Name, Withdrawal};
use futures_lite::stream::{self, Boxed, StreamExt};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetResult, GetResultPayload, ObjectMeta, PutMode, PutOptions, PutPayload, PutResult,
    Result,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tokio::sync::oneshot;
use tokio::time::{self, Instant};

use crate::requests::{Answered, Requests};

/// Occurs only in the store's error texts. No error of the crate may contain it.
pub(crate) const SECRET: &str = "AKIAIOSFODNN7EXAMPLE";

/// Numbers of chunks in the volumes of schedules that collect.
pub(crate) const SPANS: [u64; 2] = [4, 16];

/// Returns damaged copies of the bytes: one with a wrong bit for each byte, truncated ones, and
/// some with one more byte.
pub(crate) fn wrong(whole: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let damaged = (0..whole.len()).map(|at| {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1 << (at % 8);
        bytes
    });
    let cut = [0, 1, 31, 32, 40, 70, whole.len() - 1].map(|len| whole[..len].to_vec());
    damaged.chain(cut).chain([[whole, &[0]].concat()])
}

/// Fate of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    None,
    /// The request is executed, and the answer never comes.
    AnswerLost,
    /// The request is executed, and the connection breaks before the answer.
    Reset,
    /// The request is never executed, and no answer comes.
    RequestLost,
    /// 503: the request is not executed.
    Busy,
    /// 500: the request is executed nevertheless.
    FailedButDone,
    /// 409: the request is not executed, and the answer is "already exists".
    Conflict,
    /// 403: the request is not executed.
    Denied,
    /// The request is executed twice, the second time later.
    Twice,
    /// The request is executed after its client has stopped waiting.
    Late,
}

const FAULTS: [Fault; 9] = [
    Fault::AnswerLost,
    Fault::Reset,
    Fault::RequestLost,
    Fault::Busy,
    Fault::FailedButDone,
    Fault::Conflict,
    Fault::Denied,
    Fault::Twice,
    Fault::Late,
];

/// State that all clients of a store share.
pub(crate) struct Net {
    state: Mutex<State>,
}

struct State {
    objects: BTreeMap<String, Vec<u8>>,
    /// The first content of each chunk's key. Later content under the key is revived, and never
    /// counts.
    first: BTreeMap<String, Vec<u8>>,
    /// The start of the store, and the time from then to the creation of each existing object.
    begun: Instant,
    modified: BTreeMap<String, Duration>,
    /// Number of chunks that were created under a collected number.
    revived: u64,
    /// Longest delay of a request.
    late: Duration,
    rng: ChaCha8Rng,
    /// Rate of faults per thousand requests.
    per_mille: u64,
    /// Fates of the next puts. The seed decides about later ones.
    script: VecDeque<Fault>,
    outages: Vec<Outage>,
    /// Whether puts replace existing objects, as in a store without conditions.
    unconditional: bool,
    /// Counts events, so that a test can order them.
    events: u64,
    /// Keys in the order of their creation, each with its event.
    created: Vec<(String, u64)>,
    counts: BTreeMap<Fault, u64>,
    puts: u64,
    reads: u64,
    /// A client, the number of its requests until the cut, and the fate of the last of them. Later
    /// ones never arrive.
    cut: Option<(usize, u64, Fault)>,
    /// Largest length of a volume.
    volume_bytes: u64,
    /// Actions before the next reading of a key.
    hooks: Vec<(String, Hook)>,
}

type Hook = Box<dyn FnOnce(&Net) + Send>;

/// A period in which requests fail.
struct Outage {
    /// The client that it affects; `None` for all.
    client: Option<usize>,
    puts_only: bool,
    until: Instant,
}

impl Net {
    pub(crate) fn new(seed: u64, per_mille: u64) -> Arc<Net> {
        Arc::new(Net {
            state: Mutex::new(State {
                objects: BTreeMap::new(),
                first: BTreeMap::new(),
                begun: Instant::now(),
                modified: BTreeMap::new(),
                revived: 0,
                late: Duration::from_secs(120),
                rng: ChaCha8Rng::seed_from_u64(seed),
                per_mille,
                script: VecDeque::new(),
                outages: Vec::new(),
                unconditional: false,
                events: 0,
                created: Vec::new(),
                counts: BTreeMap::new(),
                puts: 0,
                reads: 0,
                cut: None,
                volume_bytes: VOLUME_BYTES_MAX as u64,
                hooks: Vec::new(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Returns a random number below `bound`.
    pub(crate) fn draw(&self, bound: u64) -> u64 {
        self.state().draw(bound)
    }

    /// Draws the delay of a request.
    fn moment(&self) -> Duration {
        let most = self.state().late.as_millis() as u64;
        // One of four is very late.
        let most = if self.draw(4) == 0 { most } else { most.min(60_000) };
        Duration::from_millis(self.draw(most))
    }

    /// Returns the number of a new event.
    pub(crate) fn event(&self) -> u64 {
        self.state().event()
    }

    /// Sets the fates of the next puts.
    pub(crate) fn script(&self, faults: &[Fault]) {
        self.state().script.extend(faults);
    }

    pub(crate) fn without_conditions(&self) {
        self.state().unconditional = true;
    }

    /// Lets this many requests of a client pass, applies the fault to the next one, and loses all
    /// later ones.
    pub(crate) fn cut(&self, client: usize, requests: u64, fault: Fault) {
        self.state().cut = Some((client, requests + 1, fault));
    }

    pub(crate) fn set_volume_bytes(&self, bytes: u64) {
        self.state().volume_bytes = bytes;
    }

    pub(crate) fn volume_bytes(&self) -> u64 {
        self.state().volume_bytes
    }

    pub(crate) fn uncut(&self) {
        self.state().cut = None;
    }

    /// Ends all faults and outages.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.per_mille = 0;
        state.outages.clear();
        state.script.clear();
    }

    pub(crate) fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        self.state().objects.clone()
    }

    /// Replaces an object, which the protocol never does.
    pub(crate) fn set(&self, key: &str, bytes: Vec<u8>) {
        self.state().objects.insert(key.to_owned(), bytes);
    }

    pub(crate) fn remove(&self, key: &str) {
        self.state().objects.remove(key);
    }

    /// Sets the longest delay of a request.
    pub(crate) fn set_late(&self, late: Duration) {
        self.state().late = late;
    }

    /// Returns the first content of each key, in a store from which only chunks are removed.
    pub(crate) fn first(&self) -> BTreeMap<String, Vec<u8>> {
        self.state().first.clone()
    }

    /// Returns the number of chunks that were put under a collected number.
    pub(crate) fn revived(&self) -> u64 {
        self.state().revived
    }

    /// Returns the event at which each key was created.
    pub(crate) fn created(&self) -> BTreeMap<String, u64> {
        self.state().created.iter().cloned().collect()
    }

    pub(crate) fn counts(&self) -> BTreeMap<Fault, u64> {
        self.state().counts.clone()
    }

    pub(crate) fn puts(&self) -> u64 {
        self.state().puts
    }

    /// Returns the number of reads and queries.
    pub(crate) fn reads(&self) -> u64 {
        self.state().reads
    }

    /// Runs the hook right before the next reading of a key with this end.
    pub(crate) fn before_reading(&self, end: &str, hook: impl FnOnce(&Net) + Send + 'static) {
        self.state().hooks.push((end.to_owned(), Box::new(hook)));
    }

    fn run_hook(&self, key: &str) {
        let mut state = self.state();
        state.reads += 1;
        let Some(at) = state.hooks.iter().position(|(end, _)| key.ends_with(end.as_str())) else { return };
        let (_, hook) = state.hooks.remove(at);
        drop(state);
        hook(self);
    }

    pub(crate) fn client(self: &Arc<Net>, id: usize) -> Arc<Answered<Client>> {
        Arc::new(Answered(Client { net: Arc::clone(self), id }))
    }
}

impl State {
    fn draw(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound.max(1)
    }

    fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    fn fault(&mut self, client: usize, is_put: bool) -> Fault {
        if let Some((_, left, fault)) = self.cut.as_mut().filter(|(of, ..)| *of == client) {
            *left = left.saturating_sub(1);
            match left {
                0 => {
                    *left = 0;
                    return if std::mem::replace(fault, Fault::RequestLost) == Fault::AnswerLost {
                        Fault::AnswerLost
                    } else {
                        Fault::RequestLost
                    };
                }
                _ => return Fault::None,
            }
        }
        if is_put {
            self.puts += 1;
            if let Some(fault) = self.script.pop_front() {
                return fault;
            }
        }
        if self.draw(1000) >= self.per_mille {
            return Fault::None;
        }
        if self.draw(20) == 0 {
            let client = (self.draw(2) == 0).then_some(client);
            let puts_only = self.draw(2) == 0;
            let until = Instant::now() + Duration::from_millis(self.draw(20_000));
            self.outages.push(Outage { client, puts_only, until });
        }
        let fault = FAULTS[self.draw(FAULTS.len() as u64) as usize];
        *self.counts.entry(fault).or_default() += 1;
        fault
    }

    fn is_out(&mut self, client: usize, is_put: bool) -> bool {
        let now = Instant::now();
        self.outages.retain(|outage| outage.until > now);
        self.outages
            .iter()
            .any(|outage| outage.client.is_none_or(|of| of == client) && (is_put || !outage.puts_only))
    }

    /// Checks that a removed chunk is in a volume that is a day old, and has a mark.
    fn require_collected(&self, key: &str) {
        if let Some((session, name)) = key.split_once("/objects/") {
            return self.require_withdrawn(session, name);
        }
        let Some((session, number)) = key.split_once("/log/") else { return self.require_compacted(key) };
        let first = number.parse::<u64>().unwrap() / SPANS[0] * SPANS[0];
        let volume = format!("{session}/volumes/{}/{first:020}", SPANS[0]);
        let age = self.begun.elapsed() - self.modified[&volume];
        if self.compaction(session).is_some_and(|it| it.around(number.parse().unwrap()).is_some()) {
            assert!(age >= Duration::from_secs(86_400), "{key}: {age:?}");
            return self.require_mark(session, first);
        }
        assert!(self.objects.contains_key(&volume) && age >= Duration::from_secs(86_400), "{key}: {age:?}");
        self.require_mark(session, first);
    }

    /// Checks that the range that begins with this chunk has its mark.
    fn require_mark(&self, session: &str, first: u64) {
        let mark = format!("{session}/collected/{first:020}");
        assert!(self.objects.contains_key(&mark), "{first} has no mark");
    }

    /// Checks that a removed payload was withdrawn a day ago.
    fn require_withdrawn(&self, session: &str, name: &str) {
        let directory = format!("{session}/withdrawn/");
        let name = Name::parse(name).unwrap();
        let withdrawn =
            self.objects.range(directory.clone()..).take_while(|(key, _)| key.starts_with(&directory));
        let of = withdrawn.map(|(key, bytes)| {
            let number = key[directory.len()..].parse().unwrap();
            (key, Withdrawal::decode(bytes, world::SESSION, number).unwrap())
        });
        let (key, _) = of
            .into_iter()
            .find(|(_, withdrawal)| withdrawal.names.contains(&name))
            .unwrap_or_else(|| panic!("{name} was removed, and not withdrawn"));
        let age = self.begun.elapsed() - self.modified[key];
        assert!(age >= Duration::from_secs(86_400), "{name} was withdrawn {age:?} ago");
    }

    /// Returns the newest compaction. Each of its volumes must exist and match its hash.
    fn compaction(&self, session: &str) -> Option<Compaction> {
        let directory = format!("{session}/compactions/");
        let (key, bytes) = self
            .objects
            .range(directory.clone()..)
            .take_while(|(key, _)| key.starts_with(&directory))
            .last()?;
        let number = key[directory.len()..].parse().unwrap();
        let compaction = Compaction::decode(bytes, world::SESSION, number).unwrap();
        for volume in &compaction.volumes {
            let hash: String = volume.hash.iter().map(|byte| format!("{byte:02x}")).collect();
            let key = format!("{session}/compacted/{number:020}/{:020}/{hash}", volume.extent.first);
            assert_eq!(*blake3::hash(&self.objects[&key]).as_bytes(), volume.hash, "{key}");
        }
        Some(compaction)
    }

    /// Checks that a removed volume was replaced by a compacted one, or is a compacted one that no
    /// longer counts.
    fn require_compacted(&self, key: &str) {
        let parts: Vec<&str> = key.rsplit('/').collect();
        if let Some((session, of)) = key.split_once("/compacted/") {
            let newest = self.compaction(session).unwrap();
            let number: u64 = of.split('/').next().unwrap().parse().unwrap();
            assert!(number <= newest.number, "{key} was removed");
            let hash = |hash: &[u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let is_named = newest.volumes.iter().any(|volume| hash(&volume.hash) == parts[0]);
            assert!(number < newest.number || !is_named, "{key} was removed");
            return;
        }
        let (session, _) = key.split_once("/volumes/").unwrap_or_else(|| panic!("{key} was removed"));
        let newest = self
            .compaction(session)
            .unwrap_or_else(|| panic!("{key} was removed, and nothing stands for it"));
        let (first, count): (u64, u64) = (parts[0].parse().unwrap(), parts[1].parse().unwrap());
        assert!(newest.touches(Extent { first, count }), "{key} was removed, and nothing stands for it");
        assert!(count > SPANS[0] || newest.around(first).is_some(), "{key}");
        if count == SPANS[0] {
            self.require_mark(session, first);
        }
    }

    /// Creates an object atomically. Returns whether it did.
    fn create(&mut self, key: &str, bytes: &[u8]) -> bool {
        if self.objects.contains_key(key) && !self.unconditional {
            return false;
        }
        self.objects.insert(key.to_owned(), bytes.to_vec());
        self.modified.insert(key.to_owned(), self.begun.elapsed());
        if self.first.contains_key(key) && !self.unconditional {
            self.revived += 1;
            return true;
        }
        self.first.insert(key.to_owned(), bytes.to_vec());
        let event = self.event();
        self.created.push((key.to_owned(), event));
        true
    }
}

/// The store as one writer sees it.
pub(crate) struct Client {
    net: Arc<Net>,
    id: usize,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} with the key {SECRET}", self.id)
    }
}

fn broken() -> Error {
    Error::Generic { store: "sim", source: format!("broken, {SECRET}\u{1b}[31m").into() }
}

fn exists(key: &str) -> Error {
    Error::AlreadyExists { path: key.to_owned(), source: SECRET.into() }
}

impl Client {
    /// Draws the delays of a request and of its answer.
    fn ways(&self) -> (Duration, Duration) {
        let mut state = self.net.state();
        let mut way = || Duration::from_micros(state.draw(40_000));
        (way(), way())
    }

    /// Executes a put in the store, even if the client has given up by then.
    async fn put(
        net: Arc<Net>,
        id: usize,
        key: String,
        bytes: Vec<u8>,
        there: Duration,
        back: Duration,
    ) -> Option<Result<()>> {
        let fault = net.state().fault(id, true);
        let late = if fault == Fault::Late { net.moment() } else { Duration::ZERO };
        time::sleep(there + late).await;
        if net.state().is_out(id, true) {
            return if net.draw(2) == 0 { None } else { Some(Err(broken())) };
        }
        let answer = match fault {
            Fault::RequestLost => return None,
            Fault::Busy => Err(broken()),
            // A store without conditions never reports that one failed.
            Fault::Conflict if !net.state().unconditional => Err(exists(&key)),
            Fault::Denied => Err(Error::PermissionDenied { path: key.clone(), source: SECRET.into() }),
            _ => {
                let created = net.state().create(&key, &bytes);
                if fault == Fault::Twice {
                    let again = net.moment();
                    let (net, key) = (Arc::clone(&net), key.clone());
                    tokio::spawn(async move {
                        time::sleep(again).await;
                        net.state().create(&key, &bytes);
                    });
                }
                if created { Ok(()) } else { Err(exists(&key)) }
            }
        };
        time::sleep(back).await;
        match fault {
            Fault::AnswerLost => None,
            Fault::Reset | Fault::FailedButDone => Some(Err(broken())),
            _ => Some(answer),
        }
    }

    /// Removes a probe, or a chunk that may be removed.
    async fn remove(net: &Net, id: usize, location: Path) -> Result<Path> {
        let key = location.as_ref();
        let fault = net.state().fault(id, false);
        match fault {
            Fault::RequestLost => std::future::pending().await,
            Fault::Busy => return Err(broken()),
            _ => {}
        }
        if !key.contains("/probe/") {
            net.state().require_collected(key);
        }
        let removed = net.state().objects.remove(key);
        match (fault, removed) {
            (Fault::AnswerLost, _) => std::future::pending().await,
            (Fault::FailedButDone, _) => Err(broken()),
            (_, None) => Err(absent(key)),
            _ => Ok(location),
        }
    }

    async fn get(&self, key: &str) -> Option<Result<GetResult>> {
        self.net.run_hook(key);
        let (there, back) = self.ways();
        let fault = self.net.state().fault(self.id, false);
        time::sleep(there).await;
        if self.net.state().is_out(self.id, false) {
            return None;
        }
        let (found, modified) = {
            let state = self.net.state();
            (state.objects.get(key).cloned(), state.modified.get(key).copied())
        };
        time::sleep(back).await;
        match fault {
            Fault::AnswerLost | Fault::RequestLost | Fault::Late => None,
            Fault::Busy | Fault::FailedButDone => Some(Err(broken())),
            Fault::Denied => {
                Some(Err(Error::Unauthenticated { path: key.to_owned(), source: SECRET.into() }))
            }
            Fault::None | Fault::Conflict | Fault::Twice | Fault::Reset => Some(
                found
                    .ok_or_else(|| absent(key))
                    .map(|bytes| answer(meta(key, &bytes, modified), &bytes, fault)),
            ),
        }
    }
}

fn absent(key: &str) -> Error {
    Error::NotFound { path: key.to_owned(), source: SECRET.into() }
}

/// Describes an object, with times of the store's clock.
fn meta(key: &str, bytes: &[u8], modified: Option<Duration>) -> ObjectMeta {
    let mut meta = ObjectMeta {
        location: Path::from(key),
        last_modified: Default::default(),
        size: bytes.len() as u64,
        e_tag: None,
        version: None,
    };
    meta.last_modified += modified.unwrap_or_default();
    meta
}

/// Returns bytes in pieces. A broken connection ends after the first one, with or without an error.
fn answer(meta: ObjectMeta, bytes: &[u8], fault: Fault) -> GetResult {
    let size = bytes.len() as u64;
    let mut pieces: Vec<Result<_>> = bytes.chunks(100).map(|piece| Ok(piece.to_vec().into())).collect();
    match fault {
        Fault::Reset => {
            pieces.truncate(1);
            pieces.push(Err(broken()));
        }
        Fault::Conflict => pieces.truncate(1),
        _ => {}
    }
    GetResult {
        payload: GetResultPayload::Stream(stream::iter(pieces).boxed()),
        meta,
        range: 0..size,
        attributes: Default::default(),
        extensions: Default::default(),
    }
}

#[async_trait]
impl Requests for Client {
    async fn create(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        assert_eq!(options.mode, PutMode::Create, "the protocol relies on creating alone");
        let (key, (there, back)) = (location.to_string(), self.ways());
        let bytes = payload.iter().flat_map(|piece| piece.to_vec()).collect();
        let (send, receive) = oneshot::channel();
        let (net, id) = (Arc::clone(&self.net), self.id);
        tokio::spawn(async move {
            if let Some(answer) = Client::put(net, id, key, bytes, there, back).await {
                let _ = send.send(answer);
            }
        });
        match receive.await {
            Ok(answer) => {
                answer.map(|()| PutResult { e_tag: None, version: None, extensions: Default::default() })
            }
            // No answer comes.
            Err(_) => std::future::pending().await,
        }
    }

    async fn read(&self, location: &Path, _: GetOptions) -> Result<GetResult> {
        match self.get(location.as_ref()).await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    fn delete(&self, locations: Boxed<Result<Path>>) -> Boxed<Result<Path>> {
        let (net, id) = (Arc::clone(&self.net), self.id);
        locations
            .then(move |location| {
                let net = Arc::clone(&net);
                async move { Client::remove(&net, id, location?).await }
            })
            .boxed()
    }

    fn list(&self, directory: Option<&Path>) -> Boxed<Result<ObjectMeta>> {
        let directory = format!("{}/", directory.unwrap());
        let may_be = ["/log/", "/volumes/", "/compacted/", "/objects/", "/probe/"];
        assert!(may_be.iter().any(|end| directory.ends_with(end)), "{directory} was listed");
        let mut state = self.net.state();
        // A list may be incomplete, and has no order.
        let mut listed: Vec<Result<ObjectMeta>> = state
            .objects
            .iter()
            .filter(|(key, _)| key.starts_with(&directory))
            .map(|(key, bytes)| Ok(meta(key, bytes, state.modified.get(key).copied())))
            .collect();
        listed.reverse();
        if state.per_mille > 0 {
            listed.retain(|_| state.draw(10) > 0);
        }
        stream::iter(listed).boxed()
    }
}
