//! Opens stores whose sessions are in a bucket that is named by its URL.

use foldlog::{Error, ResourceRegistry};
use foldlog_remote::{Place, PlaceItem, Retries, open_place, open_place_with, open_remote};

use crate::notes::{call, note, runner_over, texts, types};
use crate::placed::store;
use crate::server;

#[test]
fn a_session_goes_to_a_bucket_and_is_taken_over_from_there() {
    let Some(server) = server::bucket() else { return };
    let place = open_place_with(&server.url(), server::retries(), &server.variables()).unwrap();
    holds_and_is_taken_over(place.as_ref());
}

fn holds_and_is_taken_over(place: &dyn Place) {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let old = store(&one, place, "one").create(&types()).unwrap();
    let id = old.id();
    old.dispatch(note("short")).unwrap();
    old.dispatch(note("long ".repeat(30_000))).unwrap();
    assert!(call(&runner_over(&old, ResourceRegistry::default(), |_| Ok(())).unwrap()).unwrap().success);
    old.sync().unwrap();

    assert!(place.sessions().unwrap().contains(&id));
    let standing = place.read_standing(id).unwrap().unwrap();
    assert_eq!((standing.epoch, standing.name.as_str()), (1, "one"));
    assert_eq!(standing.next.get(), old.log().position().unwrap().get() + 1);
    let mut reader = place.reader(id).unwrap();
    reader.read_on(&mut |_| {}).unwrap();

    let new = store(&two, place, "two").take_over(id, &types()).unwrap();
    assert_eq!(texts(&new), texts(&old));
    let refused = call(&runner_over(&old, ResourceRegistry::default(), |_| panic!("it runs")).unwrap());
    assert!(matches!(refused, Err(Error::Fenced { epoch: 2, .. })), "{refused:?}");
    new.dispatch(note("went on")).unwrap();
    new.close().unwrap();
    // A reader continues from its position.
    let (mut claims, mut records) = (Vec::new(), 0);
    reader
        .read_on(&mut |met| match met {
            PlaceItem::Claim { epoch, name } => claims.push((epoch, name.to_owned())),
            PlaceItem::Record(_) => records += 1,
            _ => {}
        })
        .unwrap();
    assert_eq!(claims, [(2, "two".to_owned())]);
    assert!(records > 0);
}

/// For your own bucket, of any kind. The objects that it makes there stay.
#[test]
#[ignore = "by hand: FOLDLOG_PLACE_URL names a place, whose keys are in the environment"]
fn a_place_that_somebody_names_holds_sessions_and_one_writer_at_a_time() {
    let url = std::env::var("FOLDLOG_PLACE_URL").expect("FOLDLOG_PLACE_URL names a place");
    let place = open_place(&url, Retries::default()).unwrap();
    holds_and_is_taken_over(place.as_ref());
    crate::races::race(20, || {
        let variables = std::env::vars().collect();
        open_remote(&url, Retries::default(), &variables).unwrap()
    });
}
