//! A server without sockets, which does to requests whatever can happen to them; and what becomes of reads then.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};

use super::options::Policy;
use super::{Connector, Io, Part, RemoteStore};
use crate::error::{Error, Result};
use crate::store::{AsyncStore, Blocking, Phase, Store};

/// What is done to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Act {
    Answer,
    Delay(Duration),
    /// No answer, ever.
    Silence,
    Reset,
    Status(u16),
    /// The body breaks off with an error, ends as if it were whole, or stands still, after so many bytes.
    Cut(usize),
    Short(usize),
    Stall(usize),
    /// One bit of the body is another one.
    Flip(usize),
    /// The value is replaced by its other version, in the middle of the answer.
    Replace(usize),
}

/// Values by path, each in one of two versions.
#[derive(Debug, Default)]
pub(crate) struct Server {
    values: Mutex<BTreeMap<String, [Vec<u8>; 2]>>,
    pub versions: Mutex<HashMap<String, usize>>,
    /// What is done to the next requests; [`Act::Answer`] after that.
    pub acts: Mutex<VecDeque<Act>>,
    /// What is done before that to the next requests for a path.
    pub acts_at: Mutex<HashMap<String, VecDeque<Act>>>,
    pub log: Mutex<Vec<String>>,
    /// No ETags.
    anonymous: bool,
    /// Dates, another for each version.
    dated: bool,
    /// What `HEAD` is answered with, if it is refused.
    pub refuses_head: Option<u16>,
    /// Takes no notice of ranges.
    without_ranges: bool,
}

impl Server {
    pub fn put(&self, path: &str, value: Vec<u8>) {
        let other = value.iter().map(|b| !b).collect();
        self.values.lock().unwrap().insert(path.to_owned(), [value, other]);
    }

    /// One that tells nothing of versions.
    pub fn anonymous() -> Self {
        Self { anonymous: true, ..Self::default() }
    }

    /// Puts the other version in a value's place.
    pub fn replace(&self, path: &str) {
        *self.versions.lock().unwrap().entry(path.to_owned()).or_default() ^= 1;
    }

    pub fn taken_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    fn answer(&self, request: &HttpRequest, act: Act) -> HttpResponse {
        let path = request.uri().path().to_owned();
        let header = |name: &str| request.headers().get(name).map(|v| v.to_str().unwrap().to_owned());
        let empty = |status: u16| {
            let mut response = HttpResponse::new(HttpResponseBody::from(Vec::new()));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            response
        };
        if let Act::Status(status) = act {
            return empty(status);
        }
        if let Some(status) = self.refuses_head.filter(|_| request.method() == "HEAD") {
            return empty(status);
        }
        let values = self.values.lock().unwrap();
        let Some(versions) = values.get(&path) else { return empty(404) };
        let version = *self.versions.lock().unwrap().entry(path.clone()).or_default();
        let (value, tag) = (&versions[version], format!("\"{version}\""));
        if header("if-match").is_some_and(|wanted| wanted != tag) {
            return empty(412);
        }
        let size = value.len();
        let range = header("range").filter(|_| !self.without_ranges).map(|text| {
            let (from, to) = text.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            match from.parse::<usize>() {
                Ok(from) => from..(to.parse::<usize>().unwrap() + 1).min(size),
                Err(_) => size.saturating_sub(to.parse().unwrap())..size,
            }
        });
        if range.as_ref().is_some_and(|r| r.start >= r.end) {
            return empty(416);
        }
        let all = range.clone().unwrap_or(0..size);
        let mut body = value[all.clone()].to_vec();
        let announced = body.len();
        let mut end = None;
        match act {
            Act::Cut(n) => (body, end) = (body[..n.min(announced)].to_vec(), Some(Piece::Broken)),
            Act::Short(n) => body.truncate(n),
            Act::Stall(n) => (body, end) = (body[..n.min(announced)].to_vec(), Some(Piece::Still)),
            Act::Flip(n) if !body.is_empty() => body[n % announced] ^= 1 << (n % 8),
            Act::Replace(n) => {
                (body, end) = (body[..n.min(announced)].to_vec(), Some(Piece::Broken));
                self.versions.lock().unwrap().insert(path, 1 - version);
            }
            _ => {}
        }
        let mut pieces: VecDeque<Piece> = body.chunks(1000).map(|c| Piece::Data(c.to_vec())).collect();
        if request.method() == "HEAD" {
            pieces.clear();
        } else {
            pieces.extend(end);
        }
        let mut response = HttpResponse::new(HttpResponseBody::new(Pieces(pieces)));
        let headers = response.headers_mut();
        headers.insert("content-length", announced.into());
        if !self.anonymous {
            headers.insert("etag", tag.parse().unwrap());
        }
        if self.dated {
            let date = format!("Fri, 20 Nov 2026 10:00:0{version} GMT");
            headers.insert("last-modified", date.parse().unwrap());
        }
        if range.is_some() {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let text = format!("bytes {}-{}/{size}", all.start, all.end - 1);
            response.headers_mut().insert("content-range", text.parse().unwrap());
        }
        response
    }
}

enum Piece {
    Data(Vec<u8>),
    Broken,
    Still,
}

struct Pieces(VecDeque<Piece>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, HttpError>>> {
        match self.0.front() {
            None => Poll::Ready(None),
            // Nobody wakes the task but its own time limit.
            Some(Piece::Still) => Poll::Pending,
            Some(Piece::Broken) => Poll::Ready(Some(Err(broken()))),
            Some(Piece::Data(_)) => {
                let Some(Piece::Data(data)) = self.0.pop_front() else { return Poll::Ready(None) };
                Poll::Ready(Some(Ok(Frame::data(data.into()))))
            }
        }
    }
}

fn broken() -> HttpError {
    HttpError::new(HttpErrorKind::Interrupted, std::io::Error::from(std::io::ErrorKind::ConnectionReset))
}

#[derive(Clone, Debug)]
struct Fake(Arc<Server>);

#[async_trait]
impl HttpService for Fake {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let range = request.headers().get("range").map_or("", |r| r.to_str().unwrap());
        let line = format!("{} {} {range}", request.method(), request.uri().path());
        self.0.log.lock().unwrap().push(line.trim().to_owned());
        let own = self.0.acts_at.lock().unwrap().get_mut(request.uri().path()).and_then(VecDeque::pop_front);
        let act = own.or_else(|| self.0.acts.lock().unwrap().pop_front()).unwrap_or(Act::Answer);
        match act {
            Act::Delay(time) => tokio::time::sleep(time).await,
            Act::Silence => std::future::pending().await,
            Act::Reset => return Err(broken()),
            _ => {}
        }
        Ok(self.0.answer(&request, act))
    }
}

impl HttpConnector for Fake {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

static FAKES: LazyLock<Mutex<HashMap<String, Arc<Server>>>> = LazyLock::new(Mutex::default);

/// Makes the URL of a server that exists in this process only.
pub(crate) fn publish(server: &Arc<Server>) -> String {
    let mut fakes = FAKES.lock().unwrap();
    let location = format!("http://fake-{}/store", fakes.len());
    fakes.insert(location.clone(), Arc::clone(server));
    location
}

/// The store of a published server, whose clocks run faster.
pub(super) fn fake(location: &str, options: &[(String, String)], io: &Arc<Io>) -> Option<Result<RemoteStore>> {
    let server = Arc::clone(FAKES.lock().unwrap().get(location)?);
    let opened = open(&server, location, options, Arc::clone(io));
    Some(opened.map(|store| {
        let policy = Policy { pause: Duration::from_millis(1), ..store.policy.clone() };
        RemoteStore { policy, ..store }
    }))
}

fn open(server: &Arc<Server>, location: &str, options: &[(String, String)], io: Arc<Io>) -> Result<RemoteStore> {
    let connector = Connector { inner: Fake(Arc::clone(server)), counters: Arc::clone(&io.counters) };
    RemoteStore::open_with(location, options, io, connector)
}

pub(crate) fn store_of(server: &Arc<Server>, io: &Arc<Io>) -> RemoteStore {
    open(server, "http://fake/store", &[], Arc::clone(io)).unwrap()
}

/// Runs with a clock that jumps to the next thing that happens.
pub(crate) fn without_waiting<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8).collect()
}

fn server(acts: &[Act]) -> Arc<Server> {
    let server = Server { acts: Mutex::new(acts.iter().copied().collect()), ..Server::default() };
    server.put("/store/k", value(5000));
    Arc::new(server)
}

fn read(server: &Arc<Server>, part: Part, len: usize) -> (Result<Option<u64>>, Vec<u8>, Vec<String>) {
    let io = Io::new(1).unwrap();
    let store = store_of(server, &io);
    let mut to = vec![0; len];
    let found = without_waiting(store.read("k", part, None, Phase::Running, &mut to)).map(|f| f.map(|f| f.size));
    (found, to, server.taken_log())
}

#[test]
fn each_read_is_one_request() {
    let all = value(5000);
    let cases = [
        (Part::Whole, 6000, 0..5000, "GET /store/k"),
        (Part::From(100), 50, 100..150, "GET /store/k bytes=100-149"),
        (Part::Last, 68, 4932..5000, "GET /store/k bytes=-68"),
    ];
    for (part, len, bytes, request) in cases {
        let (found, to, log) = read(&server(&[]), part, len);
        assert_eq!(found.unwrap(), Some(5000));
        assert_eq!((&to[..bytes.len()], log), (&all[bytes], vec![request.to_owned()]));
    }
    let (found, to, log) = read(&server(&[]), Part::Whole, 4999);
    assert_eq!((found.unwrap(), log.len()), (Some(5000), 1), "too long: the size tells");
    assert!(to.iter().all(|&b| b == 0));
    let (found, _, _) = read(&server(&[]), Part::Last, 5001);
    assert_eq!(found.unwrap(), Some(5000));
    let (found, _, _) = read(&server(&[]), Part::From(4990), 20);
    let error = found.unwrap_err();
    assert!(error.message().contains("bytes 4990 to 5010") && error.message().contains("5000 bytes"), "{error}");
}

#[test]
fn a_missing_key_is_none_and_other_refusals_are_errors() {
    let io = Io::new(1).unwrap();
    let server = server(&[]);
    let store = store_of(&server, &io);
    assert!(without_waiting(store.read("no", Part::Whole, None, Phase::Running, &mut [0; 9])).unwrap().is_none());
    for status in [400, 401, 403, 405, 410] {
        server.taken_log();
        server.acts.lock().unwrap().push_back(Act::Status(status));
        let error = without_waiting(store.read("k", Part::Whole, None, Phase::Running, &mut [0; 9])).unwrap_err();
        assert!(error.message().contains(&status.to_string()) && error.message().contains("\"k\""), "{error}");
        assert_eq!(server.taken_log().len(), 1, "{status} isn't asked again");
    }
}

#[test]
fn a_body_goes_on_where_it_broke_off() {
    for act in [Act::Cut(2500), Act::Short(2500), Act::Stall(2500)] {
        let (found, to, log) = read(&server(&[act]), Part::From(1000), 3000);
        assert_eq!(found.unwrap(), Some(5000));
        assert_eq!(to, value(5000)[1000..4000]);
        assert_eq!(log, ["GET /store/k bytes=1000-3999", "GET /store/k bytes=3500-3999"], "{act:?}");
    }
}

#[test]
fn versions_are_never_mixed() {
    let (found, to, log) = read(&server(&[Act::Replace(2500)]), Part::Whole, 5000);
    assert_eq!(found.unwrap(), Some(5000));
    assert_eq!(to, value(5000).iter().map(|b| !b).collect::<Vec<_>>());
    assert_eq!(log.len(), 3, "the rest of the old one is refused, the new one read: {log:?}");
    // Without any sign of the version a body is begun again.
    let anonymous = Server { anonymous: true, acts: Mutex::new([Act::Cut(2500)].into()), ..Server::default() };
    anonymous.put("/store/k", value(5000));
    let (found, to, log) = read(&Arc::new(anonymous), Part::Whole, 5000);
    assert_eq!((found.unwrap(), to), (Some(5000), value(5000)));
    assert_eq!(log, ["GET /store/k", "GET /store/k"]);
    // A chunk whose place an index told of must be of the index's version.
    let io = Io::new(1).unwrap();
    let server = server(&[Act::Replace(0)]);
    let store = store_of(&server, &io);
    let error = without_waiting(store.read("k", Part::From(0), Some(&Arc::from("\"0\"")), Phase::Running, &mut [0; 9]))
        .unwrap_err();
    assert!(error.message().contains("replaced since its index was read"), "{error}");
}

#[test]
fn dates_tell_versions_apart_where_there_are_no_tags() {
    let io = Io::new(1).unwrap();
    let server = Server { anonymous: true, dated: true, ..Server::default() };
    server.put("/store/k", value(5000));
    let server = Arc::new(server);
    let store = store_of(&server, &io);
    let index = without_waiting(store.read("k", Part::Last, None, Phase::Running, &mut [0; 100])).unwrap().unwrap();
    let chunk = || without_waiting(store.read("k", Part::From(7), index.version.as_ref(), Phase::Running, &mut [0; 9]));
    assert_eq!(chunk().unwrap().unwrap().size, 5000);
    server.versions.lock().unwrap().insert("/store/k".to_owned(), 1);
    let error = chunk().unwrap_err();
    assert!(error.message().contains("replaced since its index was read"), "{error}");
}

#[test]
fn the_last_error_tells_the_whole_story() {
    let (found, _, log) = read(&server(&[Act::Status(503); 20]), Part::From(7), 9);
    let error = found.unwrap_err();
    for part in ["http://fake/store", "\"k\"", "bytes 7 to 16", "11 tries failed within", "503"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    assert_eq!(log.len(), 11);
}

#[test]
fn a_slow_answer_is_raced() {
    let io = Io::new(1).unwrap();
    let server = server(&[]);
    let store = store_of(&server, &io);
    without_waiting(async {
        let mut to = vec![0; 5000];
        for _ in 0..100 {
            server.acts.lock().unwrap().push_back(Act::Delay(Duration::from_millis(40)));
            store.read("k", Part::Whole, None, Phase::Running, &mut to).await.unwrap();
        }
        to.fill(0);
        server.acts.lock().unwrap().push_back(Act::Silence);
        let began = tokio::time::Instant::now();
        store.read("k", Part::Whole, None, Phase::Running, &mut to).await.unwrap();
        assert_eq!(to, value(5000));
        assert!(began.elapsed() < Duration::from_millis(400), "{:?}", began.elapsed());
    });
    assert_eq!(io.counters.hedges.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!(io.counters.requests.load(std::sync::atomic::Ordering::Relaxed), 102);
}

/// Numbers that are the same in every run.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// Something that is done to an answer of `len` bytes.
    pub fn act(&mut self, len: u64) -> Act {
        let at = self.below(len + 1) as usize;
        match self.below(12) {
            0 | 1 => Act::Answer,
            2 => Act::Delay(Duration::from_millis(self.below(60_000))),
            3 => Act::Silence,
            4 => Act::Reset,
            5 => Act::Status([500, 502, 503, 429, 408][self.below(5) as usize]),
            6 | 7 => Act::Cut(at),
            8 => Act::Short(at),
            9 => Act::Stall(at),
            10 => Act::Replace(at),
            _ => Act::Status([404, 403, 500, 504][self.below(4) as usize]),
        }
    }
}

#[test]
fn thousands_of_schedules_end_in_right_bytes_or_an_error_in_time() {
    let io = Io::new(1).unwrap();
    let (old, new) = (value(5000), value(5000).iter().map(|b| !b).collect::<Vec<_>>());
    let (mut right, mut wrong, mut missing) = (0, 0, 0);
    for seed in 0..6000 {
        let mut random = Random(seed);
        let acts: Vec<Act> = (0..random.below(16)).map(|_| random.act(5000)).collect();
        let (part, bytes) = match random.below(3) {
            0 => (Part::Whole, 0..5000),
            1 => {
                let from = random.below(4999) as usize;
                (Part::From(from as u64), from..from + 1 + random.below(4999 - from as u64) as usize)
            }
            _ => (Part::Last, 5000 - 1 - random.below(4999) as usize..5000),
        };
        let server = server(&acts);
        let store = store_of(&server, &io);
        let mut to = vec![0; bytes.len()];
        let (found, time) = without_waiting(async {
            let began = tokio::time::Instant::now();
            (store.read("k", part, None, Phase::Running, &mut to).await, began.elapsed())
        });
        // The total, one more request, and its second.
        assert!(time <= store.policy.total + 2 * store.policy.request, "seed {seed}: {time:?}");
        match found {
            Ok(Some(found)) => {
                assert_eq!(found.size, 5000);
                assert!(to == old[bytes.clone()] || to == new[bytes], "seed {seed}: bytes of two versions");
                right += 1;
            }
            // A store that says 404 is believed, once there was nothing else.
            Ok(None) => {
                assert!(acts.contains(&Act::Status(404)), "seed {seed}");
                missing += 1;
            }
            Err(e) => {
                assert!(e.message().contains("\"k\"") && e.message().contains("can't be read"), "seed {seed}: {e}");
                wrong += 1;
            }
        }
    }
    assert!(right > 3000 && wrong > 100 && missing > 20, "{right} right, {wrong} wrong, {missing} missing");
}

#[test]
fn blocking_calls_and_metadata() {
    let server = server(&[]);
    let io = Io::new(1).unwrap();
    let store = Blocking::new(Arc::new(store_of(&server, &io)));
    assert_eq!(store.get("k", 5000).unwrap().unwrap(), value(5000));
    let error: Error = store.get("k", 4999).unwrap_err();
    assert!(error.message().contains("at most 4999 bytes, but found 5000"), "{error}");
    assert!(store.exists("k").unwrap() && !store.exists("no").unwrap());
    assert_eq!(store.children("").unwrap(), None);
    let found = store.get_many(&["no".into(), "k".into()], 5000);
    assert!(found[0].as_ref().unwrap().is_none() && found[1].as_ref().unwrap().is_some());
}

#[test]
fn what_is_there_is_asked_after_once_in_a_while() {
    let server = server(&[]);
    let io = Io::new(1).unwrap();
    let store = store_of(&server, &io);
    without_waiting(async {
        for _ in 0..5 {
            assert!(store.confirm("k").await.unwrap());
        }
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(store.confirm("k").await.unwrap() && !store.confirm("no").await.unwrap());
    });
    assert_eq!(server.taken_log(), ["HEAD /store/k", "HEAD /store/k", "HEAD /store/no"]);
}

#[test]
fn a_failure_is_one_for_all_who_wait_for_it() {
    let server = server(&[Act::Status(503); 100]);
    let io = Io::new(1).unwrap();
    let store = store_of(&server, &io);
    let (first, second) = without_waiting(async {
        let all = || futures_util::future::join_all((0..8).map(|_| store.confirm("k")));
        let failed = all().await;
        assert!(failed.iter().all(|f| f.as_ref().is_err_and(|e| e.message().contains("503"))), "{failed:?}");
        let first = server.taken_log().len();
        // Who comes later asks anew.
        assert!(all().await.iter().all(Result::is_err));
        (first, server.taken_log().len())
    });
    assert_eq!(first, second);
    assert!((2..20).contains(&first), "{first} tries of one who asks");
}

#[test]
fn servers_that_refuse_head_are_asked_otherwise() {
    let io = Io::new(1).unwrap();
    for status in [403, 405, 501] {
        for without_ranges in [false, true] {
            let server = Server { refuses_head: Some(status), without_ranges, ..Server::default() };
            server.put("/store/k", value(5000));
            server.put("/store/nothing", Vec::new());
            let server = Arc::new(server);
            let store = store_of(&server, &io);
            let ask = |key| without_waiting(store.head(key)).map(|found| found.map(|f| (f.size, f.version)));
            let tag = Some("\"0\"".into());
            assert_eq!(ask("k").unwrap(), Some((5000, tag.clone())), "{status}");
            let log = server.taken_log();
            let ways = ["HEAD /store/k", "GET /store/k bytes=0-0", "GET /store/k"];
            assert_eq!(log, &ways[..if without_ranges { 3 } else { 2 }]);
            assert_eq!(ask("no").unwrap(), None);
            assert_eq!(ask("nothing").unwrap().map(|f| f.0), Some(0));
            assert_eq!(server.taken_log().iter().filter(|l| l.starts_with("GET")).count(), 2, "it is remembered");
            // What is asked while bytes are read: none of them.
            let none = without_waiting(store.read("k", Part::From(9), None, Phase::Running, &mut [])).unwrap();
            assert_eq!(none.map(|f| (f.size, f.version)), Some((5000, tag)));
            assert!(without_waiting(store.confirm("k")).unwrap() && !without_waiting(store.confirm("no")).unwrap());
        }
    }
    // One value that nobody gets says nothing of the next; nor does an outage.
    let server = server(&[Act::Status(403), Act::Status(403), Act::Status(503), Act::Answer]);
    let store = store_of(&server, &io);
    assert!(without_waiting(store.head("k")).unwrap_err().message().contains("403"));
    assert_eq!(without_waiting(store.head("k")).unwrap().map(|f| f.size), Some(5000));
    let log = server.taken_log();
    assert_eq!(log, ["HEAD /store/k", "GET /store/k bytes=0-0", "HEAD /store/k", "HEAD /store/k"]);
}

#[test]
fn locations_that_are_refused() {
    let io = Io::new(1).unwrap();
    for (location, part) in [
        ("http://me:hunter2@host/store", "without user and password"),
        ("https://host/store?sig=hunter2", "without query"),
        ("ftp://host/store", "the scheme \"ftp\""),
        ("s3://", "bucket"),
        ("http://host/a/../../b%00", ""),
    ] {
        let Err(error) = RemoteStore::open(location, &[], Arc::clone(&io)) else { panic!("{location} was opened") };
        assert!(error.message().contains(part) && !error.message().contains("hunter2"), "{error}");
    }
    for (location, option) in [("http://host/x", "aws_region"), ("s3://b/x", "nonsense"), ("gs://b/x", "aws_region")] {
        let options = [(option.to_owned(), "x".to_owned())];
        let error = RemoteStore::open(location, &options, Arc::clone(&io)).err().unwrap();
        assert!(error.message().contains(option) && error.message().contains("isn't an option"), "{error}");
    }
}
