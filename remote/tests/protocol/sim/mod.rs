//! A store in memory that loses, repeats, delays and refuses, as a seed or a script says, on tokio's paused clock.

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

/// What a store never says but in an error's text: no error of the crate may hold it.
pub(crate) const SECRET: &str = "AKIAIOSFODNN7EXAMPLE";

/// Numbers of chunks in the volumes of schedules that collect.
pub(crate) const SPANS: [u64; 2] = [4, 16];

/// Returns bytes with a wrong bit in each of them, cut off ones, and some with one more.
pub(crate) fn wrong(whole: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let damaged = (0..whole.len()).map(|at| {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1 << (at % 8);
        bytes
    });
    let cut = [0, 1, 31, 32, 40, 70, whole.len() - 1].map(|len| whole[..len].to_vec());
    damaged.chain(cut).chain([[whole, &[0]].concat()])
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// It is carried out, and the answer never comes.
    AnswerLost,
    /// It is carried out, and the connection breaks before the answer.
    Reset,
    /// It is never carried out, and no answer comes.
    RequestLost,
    /// 503: it is not carried out.
    Busy,
    /// 500: it is carried out nevertheless.
    FailedButDone,
    /// 409: it is not carried out, and the answer is "already exists".
    Conflict,
    /// 403: it is not carried out.
    Denied,
    /// It is carried out twice, the second time later.
    Twice,
    /// It is carried out so late that nobody waits any more.
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

/// All that the clients of a store share.
pub(crate) struct Net {
    state: Mutex<State>,
}

struct State {
    objects: BTreeMap<String, Vec<u8>>,
    /// What each key of a chunk was created with first: what came later under it is revived, and counts nowhere.
    first: BTreeMap<String, Vec<u8>>,
    /// When the store began, and how long after that each object was created that there is.
    begun: Instant,
    modified: BTreeMap<String, Duration>,
    /// How many chunks were created under a number that was collected.
    revived: u64,
    /// How late a request arrives at most.
    late: Duration,
    rng: ChaCha8Rng,
    /// How many of a thousand requests something happens to.
    per_mille: u64,
    /// What happens to the next puts, before the seed decides.
    script: VecDeque<Fault>,
    outages: Vec<Outage>,
    /// Whether puts replace what exists, as in a store without conditions.
    unconditional: bool,
    /// Counts what happens, so that a test knows what came before what.
    events: u64,
    /// Keys in the order in which they were created, each with the event.
    created: Vec<(String, u64)>,
    counts: BTreeMap<Fault, u64>,
    puts: u64,
    reads: u64,
    /// A client of which so many requests come through yet; what happens to the last of them, and none after it arrives.
    cut: Option<(usize, u64, Fault)>,
    /// How long volumes may be.
    volume_bytes: u64,
    /// What happens to the store in front of the next reading of a key.
    hooks: Vec<(String, Hook)>,
}

type Hook = Box<dyn FnOnce(&Net) + Send>;

/// A time in which requests do not come through.
struct Outage {
    /// The client whose requests do not; `None` for all.
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

    /// Returns a number below `bound`.
    pub(crate) fn draw(&self, bound: u64) -> u64 {
        self.state().draw(bound)
    }

    /// Draws how late something arrives.
    fn moment(&self) -> Duration {
        let most = self.state().late.as_millis() as u64;
        // One of four is very late.
        let most = if self.draw(4) == 0 { most } else { most.min(60_000) };
        Duration::from_millis(self.draw(most))
    }

    /// Numbers something that happens now.
    pub(crate) fn event(&self) -> u64 {
        self.state().event()
    }

    /// Lets these things happen to the next puts.
    pub(crate) fn script(&self, faults: &[Fault]) {
        self.state().script.extend(faults);
    }

    pub(crate) fn without_conditions(&self) {
        self.state().unconditional = true;
    }

    /// Lets so many requests of a client come through, this happen to the next one, and all behind it be lost.
    pub(crate) fn cut(&self, client: usize, requests: u64, fault: Fault) {
        self.state().cut = Some((client, requests + 1, fault));
    }

    /// Has no volume be longer.
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

    /// Puts an object in place of what is there, as nobody who keeps to the protocol does.
    pub(crate) fn set(&self, key: &str, bytes: Vec<u8>) {
        self.state().objects.insert(key.to_owned(), bytes);
    }

    pub(crate) fn remove(&self, key: &str) {
        self.state().objects.remove(key);
    }

    /// Lets requests arrive so late.
    pub(crate) fn set_late(&self, late: Duration) {
        self.state().late = late;
    }

    /// Returns what each key was created with first, in a store from which nothing but chunks is removed.
    pub(crate) fn first(&self) -> BTreeMap<String, Vec<u8>> {
        self.state().first.clone()
    }

    /// Returns how many chunks were put under a number that was collected.
    pub(crate) fn revived(&self) -> u64 {
        self.state().revived
    }

    /// Returns at which event each key was created.
    pub(crate) fn created(&self) -> BTreeMap<String, u64> {
        self.state().created.iter().cloned().collect()
    }

    pub(crate) fn counts(&self) -> BTreeMap<Fault, u64> {
        self.state().counts.clone()
    }

    pub(crate) fn puts(&self) -> u64 {
        self.state().puts
    }

    /// Returns how often anything was read or asked for.
    pub(crate) fn reads(&self) -> u64 {
        self.state().reads
    }

    /// Lets this happen right before the next reading of a key that ends so.
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

    /// Makes sure that a chunk which is removed stands in a volume that is a day old, and behind a mark.
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

    /// Makes sure that the range that begins with this chunk has its mark.
    fn require_mark(&self, session: &str, first: u64) {
        let mark = format!("{session}/collected/{first:020}");
        assert!(self.objects.contains_key(&mark), "{first} has no mark");
    }

    /// Makes sure that a payload which is removed was withdrawn a day ago.
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

    /// Returns the newest compaction, each of whose volumes must be there and be what it names.
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

    /// Makes sure that what is removed is a volume for which a compacted one stands, or a compacted one that counts no more.
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

    /// Creates an object, atomically; whether it did.
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

/// The store as one writer reaches it.
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
    /// Draws how long a request is under way, and its answer.
    fn ways(&self) -> (Duration, Duration) {
        let mut state = self.net.state();
        let mut way = || Duration::from_micros(state.draw(40_000));
        (way(), way())
    }

    /// Carries a put out, on the store's side: whoever asked for it may be gone by then.
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
            // A store that knows no conditions never says that one failed.
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

/// What the store says of an object, by a clock that began with it.
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

/// Hands bytes over in pieces; where the connection breaks, with an error or without one after the first.
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
        // A list may lack some, and has no order.
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
