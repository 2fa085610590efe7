//! Tests of names with control characters, and of statuses that stand for missing keys.

use std::sync::{Arc, Mutex};

use super::RemoteStore;
use super::fake::{Act, Server, open, store_of, without_waiting};
use super::signing::sign_again;
use crate::{ByteRange, Phase, Runtime, Store};
use dali_zarr_base::error::Code;

#[test]
fn names_with_control_characters_are_encoded() {
    let runtime = Runtime::new(1).unwrap();
    let server = Arc::new(Server::default());
    for control in (0..0x20u8).chain([0x7f]) {
        let path = format!("/a%09b/store/x%{control:02X}y%20/%F3%B0%80%80");
        server.put(&path, vec![control; 9]);
        let store = open(&server, "http://fake/a\tb/store", &[], Arc::clone(&runtime)).unwrap();
        assert_eq!(store.location(), "http://fake/a%09b/store");
        let key = format!("x{}y /\u{F0000}", char::from(control));
        let mut to = [0; 9];
        let found = without_waiting(store.read(&key, ByteRange::Whole, None, Phase::Running, &mut to)).unwrap();
        assert_eq!((found.map(|found| found.size), to), (Some(9), [control; 9]));
        assert_eq!(without_waiting(store.head(&key)).unwrap().map(|found| found.size), Some(9));
        let encoded = open(&server, "http://fake/a%09b/store/", &[], Arc::clone(&runtime)).unwrap();
        assert!(without_waiting(encoded.exists(&key)).unwrap());
        server.acts.lock().unwrap().push_back(Act::Status(403));
        let error = without_waiting(store.read(&key, ByteRange::Whole, None, Phase::Running, &mut to)).unwrap_err();
        let shown = format!("x%{control:02X}y%20/%F3%B0%80%80");
        assert!(error.message().contains(&shown) && !error.message().contains(char::is_control), "{error}");
    }
}

#[test]
fn spaces_at_the_end_belong_to_a_location() {
    let server = Arc::new(Server::default());
    server.put("/store%20%20/k", vec![1]);
    let store = open(&server, "http://fake/store  ", &[], Runtime::new(1).unwrap()).unwrap();
    assert!(without_waiting(store.exists("k")).unwrap());
}

#[test]
fn requests_whose_url_was_changed_are_signed_again() {
    use object_store::StaticCredentialProvider;
    use object_store::aws::{AwsAuthorizer, AwsCredential, AwsCredentialProvider};
    use object_store::client::{HttpRequest, HttpRequestBody};

    let credential = |key: &str| AwsCredential {
        key_id: key.to_owned(),
        secret_key: "secret".to_owned(),
        token: Some("token".to_owned()),
    };
    let request = |url: &str| -> HttpRequest {
        let builder = http::Request::builder().method("GET").uri(url).header("range", "bytes=0-1");
        builder.body(HttpRequestBody::empty()).unwrap()
    };
    let own = credential("own");
    let provider: AwsCredentialProvider = Arc::new(StaticCredentialProvider::new(credential("own")));
    let (url, other) = ("https://bucket.host/a%09b?x=1", "https://bucket.host/a%F3%B0%80%89b?x=1");
    for signs_body in [true, false] {
        // Both may be signed in different seconds.
        let same = (0..20).any(|_| {
            let authorizer = || AwsAuthorizer::new(&own, "s3", "eu-north-1").with_sign_payload(signs_body);
            let (mut expected, mut changed) = (request(url), request(other));
            authorizer().authorize(&mut changed, None);
            *changed.uri_mut() = url.parse().unwrap();
            without_waiting(sign_again(&mut changed, Some(&provider))).unwrap();
            authorizer().authorize(&mut expected, None);
            changed.headers() == expected.headers()
        });
        assert!(same, "{signs_body}");
    }
    let mut unsigned = request(url);
    without_waiting(sign_again(&mut unsigned, None)).unwrap();
    assert!(!unsigned.headers().contains_key("authorization"));
}

fn with_missing(server: &Arc<Server>, missing: &str) -> RemoteStore {
    let options = [("missing_status".to_owned(), missing.to_owned())];
    open(server, "http://fake/store", &options, Runtime::new(1).unwrap()).unwrap()
}

#[test]
fn statuses_stand_for_missing_keys_where_the_user_says_so() {
    let server = |acts: &[Act]| {
        let server = Server { acts: Mutex::new(acts.iter().copied().collect()), ..Server::default() };
        server.put("/store/k", vec![7; 5000]);
        Arc::new(server)
    };
    for status in [401, 403, 410] {
        let refusing = || server(&[Act::Status(status); 3]);
        let store = with_missing(&refusing(), "401,403, 410");
        let mut to = [0; 5000];
        let read = without_waiting(store.read("k", ByteRange::Whole, None, Phase::Running, &mut to));
        assert_eq!(read.unwrap(), None, "{status}");
        let get = without_waiting(with_missing(&refusing(), "401,403,410").get("k", 5000, Phase::Building));
        assert_eq!(get.unwrap(), None, "{status}");
        let head = without_waiting(with_missing(&refusing(), "401,403,410").head("k"));
        assert_eq!(head.unwrap(), None, "{status}");
        let exists = without_waiting(with_missing(&refusing(), "401,403,410").exists("k"));
        assert!(!exists.unwrap(), "{status}");
        let last = with_missing(&refusing(), "401,403,410");
        assert_eq!(without_waiting(last.read("k", ByteRange::Last, None, Phase::Running, &mut to)).unwrap(), None);
        // Another status, and no option.
        let error = without_waiting(with_missing(&refusing(), "404").head("k")).unwrap_err();
        assert!(error.message().contains(&status.to_string()), "{error}");
        let runtime = Runtime::new(1).unwrap();
        assert!(without_waiting(store_of(&refusing(), &runtime).head("k")).is_err(), "{status}");
    }
    // A value of which a part has arrived isn't missing.
    for (refusals, is_read) in [(1, true), (2, false)] {
        let acts = [&[Act::Cut(2500)][..], &[Act::Status(403); 2][..refusals]].concat();
        let mut to = [0; 5000];
        let store = with_missing(&server(&acts), "403");
        match without_waiting(store.read("k", ByteRange::Whole, None, Phase::Running, &mut to)) {
            Ok(found) => assert!(is_read && found.is_some() && to == [7; 5000]),
            Err(e) => assert!(!is_read && e.code() == Code::Replaced, "{e}"),
        }
    }
}
