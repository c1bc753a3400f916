//! Determines why there is no connection, from the errors of the libraries that make connections.

use std::error::Error;
use std::{io, iter};

use crate::error::RemoteFailure;

/// Returns why a connection could not be made; `None` if the error does not show that.
pub(crate) fn failure_of(error: &(dyn Error + 'static)) -> Option<RemoteFailure> {
    iter::successors(Some(error), |&error| {
        // The source of an `io::Error` skips the error that it wraps.
        let made_of = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        made_of.map_or_else(|| error.source(), |error| Some(error as _))
    })
    .find_map(one)
}

fn one(error: &(dyn Error + 'static)) -> Option<RemoteFailure> {
    match error.downcast_ref::<rustls::Error>() {
        Some(rustls::Error::InvalidCertificate(_)) => return Some(RemoteFailure::Untrusted),
        Some(_) => return Some(RemoteFailure::NoTls),
        None => {}
    }
    let error = error.downcast_ref::<io::Error>()?;
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Some(RemoteFailure::Refused),
        io::ErrorKind::TimedOut => Some(RemoteFailure::TimedOut),
        // The standard library identifies this error only by its text, which is fixed.
        _ if error.to_string().starts_with("failed to lookup address information") => {
            Some(RemoteFailure::Unresolved)
        }
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::ToSocketAddrs;

    use super::*;

    #[test]
    fn the_kind_of_a_failure_is_found_below_what_wraps_it() {
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let wrapped = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, unknown));
        assert_eq!(failure_of(&wrapped), Some(RemoteFailure::Untrusted));
        let no_tls = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        assert_eq!(failure_of(&io::Error::other(no_tls)), Some(RemoteFailure::NoTls));
        let refused = io::Error::other(io::Error::from(io::ErrorKind::ConnectionRefused));
        assert_eq!(failure_of(&refused), Some(RemoteFailure::Refused));
        // Such a name is never sent to a name server: a label has 63 bytes at most.
        let unresolved = ("a".repeat(64) + ".invalid", 1).to_socket_addrs().unwrap_err();
        assert_eq!(failure_of(&unresolved), Some(RemoteFailure::Unresolved));
        assert_eq!(failure_of(&io::Error::from(io::ErrorKind::BrokenPipe)), None);
    }
}
