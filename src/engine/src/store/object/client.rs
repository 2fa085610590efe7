//! The HTTP client below a store. It counts requests, and keeps what [`super::classify`] must know of each answer: the
//! status, and the code of the error. The library's own errors tell these as text only.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use object_store::{ClientConfigKey, ClientOptions};

use super::error_body::ErrorBody;
use super::options::is_true;
use crate::store::Counters;

/// Most bytes of the body of a refusal that are read. A server can send a body without end.
const MAX_ERROR_BODY: usize = 64 << 10;
/// Azure's header with the code of an error.
const AZURE_CODE: &str = "x-ms-error-code";

/// The answer to one request for an object's bytes, or for a list of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Answer {
    /// The request wasn't sent.
    #[default]
    None,
    /// The request wasn't sent: the URL begins with `http://`, which the options don't allow.
    Unencrypted,
    /// There was no answer: the connection failed, or the time was up.
    Failed,
    /// The status, and what else the answer says.
    Status(u16, Reply),
}

/// What an answer says beside its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    /// How long the server asks to wait before the next try.
    pub wait: Option<Duration>,
    /// The code of the error, and the bucket. Only from answers with status 400 or 404: for all others the status says
    /// enough.
    pub error: ErrorBody,
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
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| is_true(&value));
        Ok(HttpClient::new(Service { client, allows_http, counters: Arc::clone(&self.counters) }))
    }
}

#[derive(Debug)]
struct Service {
    client: HttpClient,
    /// Whether requests may be sent without encryption.
    allows_http: bool,
    counters: Arc<Counters>,
}

/// A URL that isn't encrypted, where that isn't allowed. reqwest refuses it too, but only its message says why.
#[derive(Debug)]
struct Unencrypted;

impl fmt::Display for Unencrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a URL with https://, but found http://")
    }
}

impl std::error::Error for Unencrypted {}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let note = request.extensions().get::<Note>().cloned().unwrap_or_default();
        if !self.allows_http && request.uri().scheme_str() == Some("http") {
            note.set(Answer::Unencrypted);
            return Err(HttpError::new(HttpErrorKind::Unknown, Unencrypted));
        }
        self.counters.requests.fetch_add(1, Relaxed);
        let response = self.client.execute(request).await.inspect_err(|_| note.set(Answer::Failed))?;
        let (response, error) = with_error(response).await;
        note.set(Answer::Status(response.status().as_u16(), Reply { wait: wait(&response), error }));
        Ok(response)
    }
}

/// Reads the code of the error from an answer with status 400 or 404. Returns an answer with the same body, unless that
/// breaks off or is longer than [`MAX_ERROR_BODY`].
async fn with_error(response: HttpResponse) -> (HttpResponse, ErrorBody) {
    if !matches!(response.status().as_u16(), 400 | 404) {
        return (response, ErrorBody::default());
    }
    let (parts, body) = response.into_parts();
    let (mut read, mut stream) = (Vec::new(), body.bytes_stream());
    while let Some(Ok(bytes)) = stream.next().await {
        let room = MAX_ERROR_BODY - read.len();
        read.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if read.len() == MAX_ERROR_BODY {
            break;
        }
    }
    let mut error = ErrorBody::parse(&read);
    if let Some(code) = parts.headers.get(AZURE_CODE).and_then(|code| code.to_str().ok()) {
        error.code = Some(code.to_owned());
    }
    (HttpResponse::from_parts(parts, HttpResponseBody::from(read)), error)
}

/// Returns `Retry-After` if it is a number of seconds. Dates are ignored: the usual pauses are enough.
fn wait(response: &HttpResponse) -> Option<Duration> {
    let seconds = response.headers().get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
