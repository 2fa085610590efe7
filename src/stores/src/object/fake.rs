//! A server without sockets for tests. It can act out any fault of a network or a server.

#![allow(missing_docs, reason = "it is for tests, and the names say it")]

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

use super::{Connector, Policy, RemoteStore};
use crate::Runtime;
use dali_zarr_base::error::Result;

/// How the server treats one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    Answer,
    Delay(Duration),
    /// No answer, ever.
    Silence,
    Reset,
    Status(u16),
    /// The body breaks off with an error after this many bytes.
    Cut(usize),
    /// The body ends after this many bytes, as if it were whole.
    Short(usize),
    /// The body stops after this many bytes, and never ends.
    Stall(usize),
    /// One bit of the body is flipped, in the byte with this number (modulo the body's length).
    Flip(usize),
    /// The body breaks off with an error after this many bytes, and the value is replaced by its other version.
    Replace(usize),
}

/// Values by path, each in one of two versions.
#[derive(Debug, Default)]
pub struct Server {
    pub values: Mutex<BTreeMap<String, [Vec<u8>; 2]>>,
    pub versions: Mutex<HashMap<String, usize>>,
    /// How the next requests are treated; [`Act::Answer`] after that.
    pub acts: Mutex<VecDeque<Act>>,
    /// How the next requests for a path are treated; comes before `acts`.
    pub acts_at: Mutex<HashMap<String, VecDeque<Act>>>,
    pub log: Mutex<Vec<String>>,
    /// Answers have no ETags.
    pub anonymous: bool,
    /// Answers have dates, another one for each version.
    pub dated: bool,
    /// The status that refuses `HEAD`; `None` if `HEAD` is allowed.
    pub refuses_head: Option<u16>,
    /// Requests for ranges get the whole value.
    pub without_ranges: bool,
}

impl Server {
    pub fn put(&self, path: &str, value: Vec<u8>) {
        let other = value.iter().map(|b| !b).collect();
        self.values.lock().unwrap().insert(path.to_owned(), [value, other]);
    }

    /// Makes a server that sends neither ETags nor dates.
    pub fn anonymous() -> Self {
        Self { anonymous: true, ..Self::default() }
    }

    /// Replaces a value by its other version.
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
            Act::Cut(n) => (body, end) = (body[..n.min(announced)].to_vec(), Some(BodyPiece::Broken)),
            Act::Short(n) => body.truncate(n),
            Act::Stall(n) => (body, end) = (body[..n.min(announced)].to_vec(), Some(BodyPiece::Still)),
            Act::Flip(n) if !body.is_empty() => body[n % announced] ^= 1 << (n % 8),
            Act::Replace(n) => {
                (body, end) = (body[..n.min(announced)].to_vec(), Some(BodyPiece::Broken));
                self.versions.lock().unwrap().insert(path, 1 - version);
            }
            _ => {}
        }
        let mut pieces: VecDeque<BodyPiece> = body.chunks(1000).map(|c| BodyPiece::Data(c.to_vec())).collect();
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

enum BodyPiece {
    Data(Vec<u8>),
    Broken,
    Still,
}

struct Pieces(VecDeque<BodyPiece>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, HttpError>>> {
        match self.0.front() {
            None => Poll::Ready(None),
            // Only the task's own time limit wakes it.
            Some(BodyPiece::Still) => Poll::Pending,
            Some(BodyPiece::Broken) => Poll::Ready(Some(Err(broken()))),
            Some(BodyPiece::Data(_)) => {
                let Some(BodyPiece::Data(data)) = self.0.pop_front() else { return Poll::Ready(None) };
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

/// Makes a URL for the server that works in this process only.
pub fn publish(server: &Arc<Server>) -> String {
    let mut fakes = FAKES.lock().unwrap();
    let location = format!("http://fake-{}/store", fakes.len());
    fakes.insert(location.clone(), Arc::clone(server));
    location
}

/// Opens the store of a published server, with short pauses between tries. `None` if `location` isn't one.
pub(super) fn fake(
    location: &str,
    options: &[(String, String)],
    runtime: &Arc<Runtime>,
) -> Option<Result<RemoteStore>> {
    let server = Arc::clone(FAKES.lock().unwrap().get(location)?);
    let opened = open(&server, location, options, Arc::clone(runtime));
    Some(opened.map(|store| {
        let policy = Policy { pause: Duration::from_millis(1), ..store.policy.clone() };
        RemoteStore { policy, ..store }
    }))
}

pub(super) fn open(
    server: &Arc<Server>,
    location: &str,
    options: &[(String, String)],
    runtime: Arc<Runtime>,
) -> Result<RemoteStore> {
    let connector = Connector::over(Fake(Arc::clone(server)), Arc::clone(&runtime.counters));
    RemoteStore::open_with(location, options, runtime, connector)
}

pub fn store_of(server: &Arc<Server>, runtime: &Arc<Runtime>) -> RemoteStore {
    open(server, "http://fake/store", &[], Arc::clone(runtime)).unwrap()
}

/// Runs `future` with a clock that jumps to the next timer instead of waiting for it.
pub fn without_waiting<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

/// Random numbers that are the same in every run with the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// Picks how an answer of `len` bytes is treated.
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
