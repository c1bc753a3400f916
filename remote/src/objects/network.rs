//! Stores in networks, by their URLs: S3 and compatible stores, Google Cloud Storage, Azure.
//!
//! # Sources of keys
//!
//! | URL | variables | otherwise |
//! |---|---|---|
//! | `s3://` | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; `AWS_REGION`, `AWS_ENDPOINT_URL`, and other names that start with `AWS_` | the provider's credentials of a pod, a task or a machine |
//! | `gs://` | `GOOGLE_SERVICE_ACCOUNT`, `GOOGLE_APPLICATION_CREDENTIALS`, and other names that start with `GOOGLE_` | the file of `gcloud auth application-default login`, or the provider's credentials of a machine |
//! | `az://` | `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY`, and other names that start with `AZURE_` | the provider's credentials of a machine |
//!
//! The crate `object_store` documents each variable. Profiles of `~/.aws` are not read. An endpoint
//! that starts with `http://` is used without TLS, since the user requested that. Root certificates
//! are the system's.
//!
//! # Settings that the protocol requires
//!
//! - `object_store` does not retry requests: it would put an object a second time without this
//!   crate's knowledge, and exceed the bound of an attempt. Only [`Retries`](crate::Retries)
//!   decides.
//! - Puts are conditional whatever the environment sets, and opening for writing checks that the
//!   store supports this.
//! - Redirects are not followed: a bucket in another region is a clear error, and no signature is
//!   sent to a host that the user did not name.
//! - TLS and signatures use `ring`, and change no global settings of the process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use foldlog_codec::escape;
use http_body_util::{BodyExt, Limited};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::path::Path;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use reqwest::redirect::Policy;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::BuilderVerifierExt;
use url::Url;

use super::exchange::{self, Exchange};
use crate::connection;
use crate::error::{Error, RemoteFailure, Result, ServerAnswer};
use crate::place::PlaceEnvironment;

/// Timeout of a connection. An attempt has its own bound.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a connection to the providers' sources of keys: they answer at once or not at all.
const PROVIDER_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens the store at a URL, and returns it with the prefix of the sessions.
///
/// # Errors
///
/// [`Error::Url`] and [`Error::Settings`].
pub(crate) fn open(url: &Url, variables: &PlaceEnvironment) -> Result<(Arc<dyn ObjectStore>, String)> {
    let is_name = |name: &&str| {
        let is_of_names = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !name.is_empty() && name.bytes().all(is_of_names)
    };
    let bucket = url.host_str().filter(is_name).ok_or(Error::Url { reason: "it names no bucket" })?;
    let prefix = Path::from_url_path(url.path())
        .map_err(|_| Error::Url { reason: "its prefix does not consist of names with `/` between them" })?;
    let store = match url.scheme() {
        #[cfg(feature = "s3")]
        "s3" => s3(bucket, variables)?,
        #[cfg(feature = "gcs")]
        "gs" => gcs(bucket, variables)?,
        #[cfg(feature = "azure")]
        "az" => azure(bucket, variables)?,
        _ => {
            return Err(Error::NotBuiltIn { what: "this kind of bucket" });
        }
    };
    Ok((store, prefix.to_string()))
}

/// Configures `object_store` to try each request once.
fn without_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Returns the settings with names that start with `prefix`, in a builder's form.
fn settings<'a, K: std::str::FromStr>(
    prefix: &'static str,
    variables: &'a PlaceEnvironment,
) -> impl Iterator<Item = (K, &'a String)> {
    let named = variables.iter().filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty());
    named.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value)))
}

#[cfg(any(feature = "s3", feature = "azure"))]
/// Returns whether an endpoint is used without TLS.
fn is_plain(endpoint: Option<String>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.to_ascii_lowercase().starts_with("http://"))
}

#[cfg(feature = "s3")]
fn s3(bucket: &str, variables: &PlaceEnvironment) -> Result<Arc<dyn ObjectStore>> {
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};

    let builder = settings("AWS_", variables)
        .fold(AmazonS3Builder::new(), |builder, (key, value)| builder.with_config(key, value));
    let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint]
        .iter()
        .find_map(|key| builder.get_config_value(key));
    let builder = if is_plain(endpoint) { builder.with_allow_http(true) } else { builder };
    let store = builder
        .with_bucket_name(bucket)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_retry(without_retries())
        .with_http_connector(Connector)
        .build();
    Ok(Arc::new(store.map_err(|_| Error::Settings { reason: "check the variables that begin with AWS_" })?))
}

#[cfg(feature = "gcs")]
fn gcs(bucket: &str, variables: &PlaceEnvironment) -> Result<Arc<dyn ObjectStore>> {
    use object_store::gcp::GoogleCloudStorageBuilder;

    let builder = settings("GOOGLE_", variables)
        .fold(GoogleCloudStorageBuilder::new(), |builder, (key, value)| builder.with_config(key, value));
    let store =
        builder.with_bucket_name(bucket).with_retry(without_retries()).with_http_connector(Connector).build();
    Ok(Arc::new(
        store.map_err(|_| Error::Settings { reason: "check the variables that begin with GOOGLE_" })?,
    ))
}

#[cfg(feature = "azure")]
fn azure(container: &str, variables: &PlaceEnvironment) -> Result<Arc<dyn ObjectStore>> {
    use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

    let mut builder = settings("AZURE_", variables)
        .fold(MicrosoftAzureBuilder::new(), |builder, (key, value)| builder.with_config(key, value));
    // Azure's own services set this variable without the prefix.
    if let Some(endpoint) = variables.get("IDENTITY_ENDPOINT") {
        builder = builder.with_msi_endpoint(endpoint);
    }
    if is_plain(builder.get_config_value(&AzureConfigKey::Endpoint)) {
        builder = builder.with_allow_http(true);
    }
    let store = builder
        .with_container_name(container)
        .with_retry(without_retries())
        .with_http_connector(Connector)
        .build();
    Ok(Arc::new(store.map_err(|_| Error::Settings { reason: "check the variables that begin with AZURE_" })?))
}

/// Creates the HTTP clients for stores.
#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let says = |key| options.get_config_value(&key);
        let is_plain = says(ClientConfigKey::AllowHttp).is_some_and(|allowed| allowed == "true");
        let is_provider = says(ClientConfigKey::ConnectTimeout).is_some_and(|wait| wait == "1s");
        let client = reqwest::Client::builder()
            .user_agent(concat!("foldlog/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(tls()?)
            .https_only(!is_plain)
            .redirect(Policy::none())
            .connect_timeout(if is_provider { PROVIDER_CONNECT_TIMEOUT } else { CONNECT_TIMEOUT })
            .build();
        client.map(|client| HttpClient::new(BoundedHttpService(client))).map_err(not_made)
    }
}

/// Maximum length of an answer about a failed request, in bytes. Those of S3 have some hundreds.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// Maximum length of a region's name, and of a code, in bytes. The longest code of S3 has 46.
const NAME_BYTES_MAX: usize = 64;

/// Bounds the answers that `object_store` buffers before this crate sees them: it reads the whole
/// text of a failure. The content of an object is bounded where it is read. Also records the host
/// of a request, and the status and code of a failure.
#[derive(Debug)]
struct BoundedHttpService<S>(S);

#[async_trait]
impl<S: HttpService> HttpService for BoundedHttpService<S> {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (host, sent) = (host(&request), SentCredentials::from_request(&request));
        let note = |answer, failure| exchange::note(Exchange { host: host.clone(), answer, failure });
        note(None, None);
        let response = match self.0.call(request).await {
            Ok(response) => response,
            Err(error) => {
                let timed_out = (error.kind() == HttpErrorKind::Timeout).then_some(RemoteFailure::TimedOut);
                note(None, timed_out.or_else(|| connection::failure_of(&error)));
                return Err(error);
            }
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let header = |name| sent.filter_name(response.headers().get(name)?.to_str().ok()?);
        let (code, region) =
            (header("x-ms-error-code").filter(|code| is_code(code)), header("x-amz-bucket-region"));
        let answered = |code| {
            Some(ServerAnswer::Http { status, code, region: region.filter(|region| is_region(region)) })
        };
        let (parts, body) = response.into_parts();
        let body = match Limited::new(body, REFUSAL_BYTES_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                note(answered(code), None);
                return Err(HttpError::new_boxed(HttpErrorKind::Decode, error));
            }
        };
        let named =
            || std::str::from_utf8(&body).ok().and_then(named_code).and_then(|code| sent.filter_name(code));
        note(answered(code.or_else(named)), None);
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

/// Returns host and port of a request, without a user or a password in its address.
fn host(request: &HttpRequest) -> Option<String> {
    let uri = request.uri();
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("http") { 80 } else { 443 });
    uri.host().map(|host| format!("{}:{port}", escape::text(host)))
}

/// The credentials of a request, so that no answer that quotes them is shown.
struct SentCredentials(Vec<String>);

impl SentCredentials {
    fn from_request(request: &HttpRequest) -> SentCredentials {
        let headers =
            request.headers().values().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        SentCredentials(headers.chain(request.uri().query().map(str::to_owned)).collect())
    }

    /// Returns a name from an answer, unless the request contains it, or it is too long for a name.
    fn filter_name(&self, name: &str) -> Option<String> {
        let is_quoted = || self.0.iter().any(|sent| sent.contains(name));
        (!name.is_empty() && name.len() <= NAME_BYTES_MAX && !is_quoted()).then(|| name.to_owned())
    }
}

/// Returns the code in the text of a failure.
fn named_code(text: &str) -> Option<&str> {
    text.split_once("<Code>")?.1.split_once("</Code>").map(|(code, _)| code).filter(|code| is_code(code))
}

/// Returns whether a text has the form of a code. No id of a key and no signature has that form:
/// they consist of capitals and digits alone, or do not start with a capital.
fn is_code(code: &str) -> bool {
    let is_word = code.starts_with(|first: char| first.is_ascii_uppercase());
    is_word
        && code.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && code.contains(|letter: char| letter.is_ascii_lowercase())
}

fn is_region(region: &str) -> bool {
    region.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn tls() -> object_store::Result<ClientConfig> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_platform_verifier())
        .map_err(not_made)?;
    Ok(config.with_no_client_auth())
}

fn not_made(error: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    object_store::Error::Generic { store: "network", source: Box::new(error) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn opened(url: &str, variables: &[(&str, &str)]) -> Result<(Arc<dyn ObjectStore>, String)> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        open(&Url::parse(url).unwrap(), &variables.collect())
    }

    fn refused(url: &str, variables: &[(&str, &str)]) -> Error {
        opened(url, variables).unwrap_err()
    }

    #[test]
    fn a_url_names_bucket_and_prefix_and_no_more() {
        let settings = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "hunter2")];
        for (url, prefix) in
            [("s3://agents", ""), ("s3://agents/", ""), ("s3://agents/team/of%20two/", "team/of two")]
        {
            let (store, found) = opened(url, &settings).unwrap();
            assert_eq!(found, prefix, "{url}");
            assert!(store.to_string().contains("agents"), "{store}");
        }
        for url in ["s3:///team", "s3://%2e%2e/team", "s3://a%20b/team"] {
            assert_eq!(refused(url, &settings), Error::Url { reason: "it names no bucket" }, "{url}");
        }
        let reason = "its prefix does not consist of names with `/` between them";
        assert_eq!(refused("s3://agents/team//two", &settings), Error::Url { reason });
    }

    /// Answers each request with a status and a body of that many bytes.
    #[derive(Debug)]
    struct Answers(u16, usize);

    #[async_trait]
    impl HttpService for Answers {
        async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
            let mut response = HttpResponse::new(vec![b'x'; self.1].into());
            *response.status_mut() = self.0.try_into().unwrap();
            Ok(response)
        }
    }

    #[test]
    fn no_text_of_a_failure_is_taken_into_memory_whatever_its_length() {
        for (status, len, is_read) in [
            (503, REFUSAL_BYTES_MAX, true),
            (503, REFUSAL_BYTES_MAX + 1, false),
            (301, 1 << 20, false),
            (200, 1 << 20, true),
        ] {
            let answered = futures_lite::future::block_on(async {
                let request = HttpRequest::new(Vec::new().into());
                let answer = BoundedHttpService(Answers(status, len)).call(request).await?;
                answer.into_body().collect().await.map(|body| body.to_bytes().len())
            });
            assert_eq!(answered.ok(), is_read.then_some(len), "{status}: {len}");
        }
    }

    #[test]
    #[cfg(feature = "s3")]
    fn settings_that_do_not_fit_together_are_refused_and_not_quoted() {
        let reason = "check the variables that begin with AWS_";
        for settings in [
            &[("AWS_ACCESS_KEY_ID", "hunter2")][..],
            &[("AWS_SECRET_ACCESS_KEY", "hunter2")],
            &[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_S3_EXPRESS", "hunter2")],
        ] {
            let error = refused("s3://agents/team", settings);
            assert!(!format!("{error} {error:?}").contains("hunter2"));
            assert_eq!(error, Error::Settings { reason });
        }
        // An empty variable counts as unset, as in other programs.
        assert!(
            opened("s3://agents/team", &[("AWS_SECRET_ACCESS_KEY", ""), ("AWS_ENDPOINT_URL", "")]).is_ok()
        );
    }

    #[test]
    #[cfg(feature = "gcs")]
    fn a_bucket_of_google_is_reached_with_the_keys_of_its_variables() {
        assert!(opened("gs://agents/team", &[("GOOGLE_SKIP_SIGNATURE", "true")]).is_ok());
        let error =
            refused("gs://agents/team", &[("GOOGLE_SERVICE_ACCOUNT_KEY", "{\"private_key\": \"hunter2\"}")]);
        assert!(!format!("{error} {error:?}").contains("hunter2"));
        assert_eq!(error, Error::Settings { reason: "check the variables that begin with GOOGLE_" });
    }

    #[test]
    #[cfg(feature = "azure")]
    fn a_container_of_azure_is_reached_with_the_account_of_its_variables() {
        let account = ("AZURE_STORAGE_ACCOUNT_NAME", "foldlog");
        let key = ("AZURE_STORAGE_ACCOUNT_KEY", "aHVudGVyMg==");
        assert!(opened("az://agents/team", &[account, key]).is_ok());
        let error = refused("az://agents/team", &[key]);
        assert_eq!(error, Error::Settings { reason: "check the variables that begin with AZURE_" });
        assert!(!format!("{error} {error:?}").contains("aHVudGVyMg"));
    }
}
