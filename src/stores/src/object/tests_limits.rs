//! Tests that no answer of a server takes more than its limit, of memory or of time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use tokio::time::Instant;

use super::RemoteStore;
use super::client::Connector;
use super::fake::without_waiting;
use crate::{ByteRange, Found, ObjectVersion, Phase, Runtime, Store};
use dali_zarr_base::error::{Code, Result};

const PIECE: usize = 64 << 10;

/// A server whose bodies have no end.
#[derive(Clone, Debug)]
struct Endless {
    status: u16,
    headers: Vec<(&'static str, String)>,
    /// What a body begins with.
    begin: &'static str,
    /// Whether a byte comes each second, instead of 64 KiB at once.
    slow: bool,
    /// Bytes of all bodies that were taken.
    taken: Arc<AtomicUsize>,
}

impl Endless {
    fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), begin: "", slow: false, taken: Arc::default() }
    }

    fn open(&self, location: &str) -> RemoteStore {
        let runtime = Runtime::new(1).unwrap();
        let connector = Connector::over(self.clone(), Arc::clone(&runtime.counters));
        let options: &[(&str, &str)] =
            if location.starts_with("s3") { &[("aws_region", "eu"), ("skip_signature", "true")] } else { &[] };
        let options: Vec<_> = options.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        RemoteStore::open_with(location, &options, runtime, connector).unwrap()
    }
}

struct Pieces(Endless, bool, Option<Pin<Box<tokio::time::Sleep>>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if self.0.slow {
            let sleep = self.2.get_or_insert_with(|| Box::pin(tokio::time::sleep(Duration::from_secs(1))));
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.2 = None;
        }
        let piece = match (std::mem::replace(&mut self.1, true), self.0.slow) {
            (false, _) if !self.0.begin.is_empty() => Bytes::from_static(self.0.begin.as_bytes()),
            (_, true) => Bytes::from_static(b"x"),
            (_, false) => Bytes::from(vec![b'x'; PIECE]),
        };
        self.0.taken.fetch_add(piece.len(), Relaxed);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

#[async_trait]
impl HttpService for Endless {
    async fn call(&self, _: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let mut response = HttpResponse::new(HttpResponseBody::new(Pieces(self.clone(), false, None)));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap();
        for (name, value) in &self.headers {
            response.headers_mut().insert(*name, value.parse().unwrap());
        }
        Ok(response)
    }
}

impl HttpConnector for Endless {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

fn read(store: &RemoteStore) -> Result<Option<Found>> {
    without_waiting(store.read("k", ByteRange::Whole, None, Phase::Building, &mut [0; 9]))
}

#[test]
fn bodies_of_refusals_are_read_up_to_a_limit() {
    for status in [400, 401, 403, 404, 405, 410, 416, 418, 429, 500, 501, 503] {
        for location in ["https://host/store", "s3://bucket/store"] {
            let server = Endless { begin: "<Error><Code>Some</Code> \u{1}", ..Endless::new(status) };
            let found = read(&server.open(location));
            assert_eq!(found.is_ok(), status == 404, "{status}: {found:?}");
            if let Err(e) = found {
                assert!(e.message().len() < 2000 && e.message().contains("<Code>Some</Code> \\u{1}x"), "{e}");
            }
            // At most five tries.
            let taken = server.taken.load(Relaxed);
            assert!(taken <= 5 * 3 * PIECE, "{status}: {taken}");
        }
    }
}

#[test]
fn a_slow_body_of_a_refusal_does_not_hide_its_status() {
    let server = Endless { slow: true, ..Endless::new(403) };
    let store = server.open("https://host/store");
    let (error, took) = without_waiting(async {
        let began = Instant::now();
        let read = store.read("k", ByteRange::Whole, None, Phase::Building, &mut [0; 9]).await;
        (read.unwrap_err(), began.elapsed())
    });
    assert!(error.code() == Code::PermissionDenied && error.message().contains("403"), "{error}");
    assert!(took <= Duration::from_secs(6), "{took:?}");
}

#[test]
fn lists_are_read_up_to_a_limit() {
    let server = Endless::new(200);
    let error = without_waiting(server.open("s3://bucket/store").children("")).unwrap_err();
    assert!(error.message().contains("expected an answer of at most 16777216 bytes, but found more"), "{error}");
    let taken = server.taken.load(Relaxed);
    assert!(((16 << 20)..=(17 << 20)).contains(&taken), "it is asked once: {taken}");
}

#[test]
fn values_are_read_up_to_their_length() {
    for length in ["5", "900000000000000000"] {
        let headers = vec![("content-length", length.to_owned()), ("etag", "\"1\"".into())];
        let server = Endless { headers, ..Endless::new(200) };
        let store = server.open("https://host/store");
        let found = without_waiting(store.get("k", 1000, Phase::Building));
        assert!(found.is_err(), "{length}");
        let _ = read(&store);
        assert!(server.taken.load(Relaxed) <= 20 * PIECE, "{length}");
    }
}

#[test]
fn tags_of_any_length_are_taken_and_long_ones_not_kept() {
    for (len, kept) in [(1 << 10, true), ((1 << 10) + 1, false)] {
        let headers = vec![("content-length", "5".to_owned()), ("etag", format!("\"{}\"", "x".repeat(len - 2)))];
        let server = Endless { headers, ..Endless::new(200) };
        let found = without_waiting(server.open("https://host/store").head("k")).unwrap().unwrap();
        let tag = matches!(&found.version, Some(ObjectVersion::Tag(tag)) if tag.len() == len);
        assert_eq!(tag, kept, "{:?}", found.version);
    }
}
