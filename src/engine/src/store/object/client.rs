//! The HTTP client below a store. It counts requests, and keeps each answer's status for [`super::classify`].

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

use crate::store::Counters;

/// The answer to one request for an object's bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Answer {
    /// The request wasn't sent.
    #[default]
    None,
    /// There was no answer: the connection failed, or the time was up.
    Failed,
    /// The status, and how long the server asks to wait before the next try.
    Status(u16, Option<Duration>),
}

/// Travels with a request through the library, and receives the answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Note(Arc<Mutex<Answer>>);

impl Note {
    fn set(&self, answer: Answer) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    /// Returns the answer; [`Answer::None`] if there is none yet.
    pub fn get(&self) -> Answer {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Makes clients that count requests and keep each answer's status.
#[derive(Debug)]
pub(super) struct Connector<C> {
    pub inner: C,
    pub counters: Arc<Counters>,
}

impl Connector<ReqwestConnector> {
    pub fn new(counters: Arc<Counters>) -> Self {
        Self { inner: ReqwestConnector::default(), counters }
    }
}

impl<C: HttpConnector> HttpConnector for Connector<C> {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = self.inner.connect(options)?;
        Ok(HttpClient::new(Service { client, counters: Arc::clone(&self.counters) }))
    }
}

#[derive(Debug)]
struct Service {
    client: HttpClient,
    counters: Arc<Counters>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.counters.requests.fetch_add(1, Relaxed);
        let note = request.extensions().get::<Note>().cloned();
        let result = self.client.execute(request).await;
        if let Some(note) = note {
            note.set(match &result {
                Ok(response) => Answer::Status(response.status().as_u16(), wait(response)),
                Err(_) => Answer::Failed,
            });
        }
        result
    }
}

/// Returns `Retry-After` if it is a number of seconds. Dates are ignored: the usual pauses are enough.
fn wait(response: &HttpResponse) -> Option<Duration> {
    let seconds = response.headers().get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
