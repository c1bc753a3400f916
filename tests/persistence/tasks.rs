//! Tasks: allowed transitions, refusals, and the next task.

use foldlog_tasks::{
    BlockedTask, DependencyAdded, DependencyType, TaskChanges, TaskId, TaskModified, TaskStatus,
    TaskTreeState, Waits,
};

use super::*;

use TaskStatus::{Blocked, Cancelled, Completed, Failed, InProgress, Pending, Skipped};

/// Moves a pending task to a state.
fn bring(session: &Session, name: &str, to: TaskStatus) {
    let steps: &[(TaskStatus, TaskStatus)] = match to {
        Pending => &[],
        InProgress => &[(Pending, InProgress)],
        Completed => &[(Pending, InProgress), (InProgress, Completed)],
        Failed => &[(Pending, InProgress), (InProgress, Failed)],
        Blocked | Skipped | Cancelled => &[(Pending, to)],
    };
    steps.iter().for_each(|(from, to)| change(session, name, *from, *to).unwrap());
}

fn names(ids: &[TaskId]) -> Vec<&str> {
    ids.iter().map(TaskId::as_str).collect()
}

/// A second copy of the table in the module's documentation.
#[test]
fn each_transition_of_the_table_holds_and_no_other() {
    let (store, _) = store(false);
    let legal = [
        (Pending, vec![InProgress, Blocked, Skipped, Cancelled]),
        (Blocked, vec![Pending, Skipped, Cancelled]),
        (InProgress, vec![Completed, Failed, Blocked, Pending, Cancelled]),
        (Failed, vec![Pending, Skipped, Cancelled]),
        (Completed, vec![]),
        (Skipped, vec![]),
        (Cancelled, vec![]),
    ];
    assert_eq!(legal.len(), TaskStatus::ALL.len());
    for (from, legal) in legal {
        for to in TaskStatus::ALL {
            let session = store.create(&types()).unwrap();
            create(&session, task("t")).unwrap();
            bring(&session, "t", from);
            let position = session.log().position();
            let changed = change(&session, "t", from, to);
            assert_eq!(changed.is_ok(), legal.contains(&to), "{from} to {to}: {changed:?}");
            if changed.is_err() {
                assert_eq!(refusal(changed), format!("task `t` cannot go from {from} to {to}"));
                assert_eq!(session.log().position(), position, "nothing is recorded");
            }
        }
    }
}

#[test]
fn an_event_that_contradicts_the_tasks_is_refused_with_the_facts_and_records_nothing() {
    let (store, _) = store(false);
    let session = store.create(&types()).unwrap();
    create(&session, task("a")).unwrap();
    create(&session, task("b").requires(id("a"))).unwrap();
    create(&session, task("c").requires(id("b")).with_parent(id("a"))).unwrap();
    create(&session, task("d")).unwrap();
    change(&session, "d", Pending, Cancelled).unwrap();
    let depends = |from: &str, to: &str| {
        let event = DependencyAdded { from: id(from), to: id(to), dep_type: DependencyType::Prefers };
        session.dispatch(event).map(drop)
    };
    let parent = |name: &str, parent: Option<&str>| {
        let changes = TaskChanges { parent: Some(parent.map(id)), ..TaskChanges::default() };
        session.dispatch(TaskModified { task_id: id(name), changes }).map(drop)
    };
    let position = session.log().position();
    let refused = [
        (create(&session, task("a")), "there is a task `a` already: \"The task a\""),
        (create(&session, task("e").with_parent(id("z"))), "there is no task `z`"),
        (create(&session, task("e").with_parent(id("d"))), "its parent `d` is cancelled"),
        (create(&session, task("e").requires(id("e"))), "there is no task `e`"),
        (create(&session, task("e").requires(id("a")).prefers(id("a"))), "it depends on `a` twice"),
        (change(&session, "z", Pending, Skipped), "there is no task `z`"),
        (change(&session, "a", InProgress, Completed), "task `a` is pending, not in_progress"),
        (change(&session, "b", Pending, InProgress), "task `b` requires `a`, which is pending"),
        (depends("c", "b"), "task `c` depends on `b` already"),
        (depends("a", "z"), "there is no task `z`"),
        (depends("z", "a"), "there is no task `z`"),
        (depends("a", "a"), "the dependency would close a cycle: a -> a"),
        (depends("a", "c"), "the dependency would close a cycle: a -> c -> b -> a"),
        (parent("a", Some("c")), "task `a` cannot be a part of itself or of what is below it"),
        (parent("a", Some("a")), "task `a` cannot be a part of itself or of what is below it"),
        (parent("a", Some("z")), "there is no task `z`"),
        (parent("z", None), "there is no task `z`"),
    ];
    for (refused, reason) in refused {
        assert_eq!(refusal(refused), reason);
    }
    assert_eq!(session.log().position(), position, "nothing is recorded");
}

#[test]
fn the_schedule_says_what_is_next_and_what_the_others_wait_for() {
    let (store, clock) = store(false);
    let session = store.create(&types()).unwrap();
    for new in [
        task("design"),
        task("build").requires(id("design")),
        task("polish"),
        task("docs"),
        task("urgent"),
        task("ship").requires(id("build")).requires(id("dropped-one")),
        task("wait"),
    ] {
        if new.id == id("ship") {
            create(&session, task("dropped-one")).unwrap();
        }
        create(&session, new).unwrap();
    }
    let (from, to) = (id("polish"), id("docs"));
    session.dispatch(DependencyAdded { from, to, dep_type: DependencyType::Prefers }).unwrap();
    let changes = TaskChanges { priority: Some(5), ..TaskChanges::default() };
    session.dispatch(TaskModified { task_id: id("urgent"), changes }).unwrap();
    change(&session, "wait", Pending, Blocked).unwrap();
    let schedule = TaskTreeState::from_session(&session).unwrap().scheduling_state;
    assert_eq!(names(&schedule.ready), ["urgent", "design", "docs", "dropped-one", "polish"]);
    let waits = |name: &str, waits: Waits| BlockedTask { task: id(name), waits };
    let dropped = id("dropped-one");
    let wait = waits("wait", Waits::ForReason(None));
    assert_eq!(
        schedule.blocked,
        [
            waits("build", Waits::ForTasks(vec![id("design")])),
            waits("ship", Waits::ForTasks(vec![id("build"), dropped.clone()])),
            wait.clone(),
        ]
    );

    // Two are started, and one fails once.
    clock.advance_us(1_000_000);
    bring(&session, "docs", InProgress);
    clock.advance_us(1_000_000);
    bring(&session, "design", Failed);
    change(&session, "design", Failed, Pending).unwrap();
    bring(&session, "design", InProgress);
    let tree = TaskTreeState::from_session(&session).unwrap();
    assert_eq!(tree.active_task, Some(id("design")), "it was started last");
    assert_eq!(names(&tree.scheduling_state.in_progress), ["docs", "design"]);
    let design = &tree.tasks[&id("design")];
    assert_eq!((design.attempts, design.retries(), design.failures), (2, 1, 1));
    assert_eq!((design.updated_at - design.created_at).num_seconds(), 2);

    change(&session, "design", InProgress, Completed).unwrap();
    change(&session, "dropped-one", Pending, Cancelled).unwrap();
    change(&session, "docs", InProgress, Failed).unwrap();
    let tree = TaskTreeState::from_session(&session).unwrap();
    assert_eq!((tree.active_task, tree.task_counter), (None, 8));
    assert_eq!(names(&tree.scheduling_state.ready), ["urgent", "build", "polish"]);
    assert_eq!(names(&tree.scheduling_state.failed), ["docs"]);
    assert_eq!(tree.scheduling_state.blocked, [waits("ship", Waits::ForCancelled(vec![dropped])), wait]);
    assert_eq!(names(&tree.root_tasks).len(), 8);
    assert_eq!(
        tree.dependency_graph.keys().map(TaskId::as_str).collect::<Vec<_>>(),
        ["build", "polish", "ship"]
    );
}

/// A parent was ready while its parts were pending, so a host that takes ready tasks did the whole
/// before its parts.
#[test]
fn a_task_waits_for_its_parts_to_end_however_they_do() {
    let (store, _) = store(false);
    let session = store.create(&types()).unwrap();
    create(&session, task("site")).unwrap();
    create(&session, task("pages").with_parent(id("site"))).unwrap();
    create(&session, task("index").with_parent(id("pages"))).unwrap();
    create(&session, task("logo").with_parent(id("site"))).unwrap();
    create(&session, task("ship").requires(id("site"))).unwrap();
    let waits = |name: &str, parts: &[&str]| BlockedTask {
        task: id(name),
        waits: Waits::ForParts(parts.iter().map(|part| id(part)).collect()),
    };
    let schedule = || TaskTreeState::from_session(&session).unwrap().scheduling_state;
    let ship = BlockedTask { task: id("ship"), waits: Waits::ForTasks(vec![id("site")]) };
    assert_eq!(names(&schedule().ready), ["index", "logo"]);
    assert_eq!(
        schedule().blocked,
        [waits("site", &["pages", "logo"]), waits("pages", &["index"]), ship.clone()]
    );
    bring(&session, "logo", Failed);
    bring(&session, "index", Completed);
    assert_eq!(names(&schedule().ready), ["pages"]);
    assert_eq!(schedule().blocked, [waits("site", &["pages", "logo"]), ship.clone()]);
    bring(&session, "pages", Skipped);
    assert_eq!(schedule().blocked, [waits("site", &["logo"]), ship.clone()], "it may be tried again");
    change(&session, "logo", Failed, Cancelled).unwrap();
    assert_eq!((names(&schedule().ready), schedule().blocked), (vec!["site"], vec![ship]));

    // The schedule is advice: a host may start a task before its parts.
    create(&session, task("film")).unwrap();
    create(&session, task("cut").with_parent(id("film"))).unwrap();
    bring(&session, "film", InProgress);
    assert_eq!(names(&schedule().ready), ["site", "cut"]);
}

/// Parts that follow their task must not prevent its start, or neither would ever start.
#[test]
fn a_part_that_waits_for_its_task_is_not_waited_for() {
    let (store, _) = store(false);
    let session = store.create(&types()).unwrap();
    create(&session, task("plan")).unwrap();
    create(&session, task("write").with_parent(id("plan"))).unwrap();
    create(&session, task("review").with_parent(id("plan")).requires(id("plan"))).unwrap();
    create(&session, task("publish").with_parent(id("plan")).requires(id("review"))).unwrap();
    let schedule = || TaskTreeState::from_session(&session).unwrap().scheduling_state;
    let blocked = |name: &str, waits: Waits| BlockedTask { task: id(name), waits };
    assert_eq!(names(&schedule().ready), ["write"]);
    assert_eq!(
        schedule().blocked,
        [
            blocked("plan", Waits::ForParts(vec![id("write")])),
            blocked("review", Waits::ForTasks(vec![id("plan")])),
            blocked("publish", Waits::ForTasks(vec![id("review")])),
        ]
    );
    for name in ["write", "plan", "review", "publish"] {
        assert_eq!(names(&schedule().ready), [name]);
        bring(&session, name, Completed);
    }
    // Each waits for the other one's part.
    create(&session, task("one")).unwrap();
    create(&session, task("other")).unwrap();
    create(&session, task("of-one").with_parent(id("one")).requires(id("other"))).unwrap();
    create(&session, task("of-other").with_parent(id("other")).requires(id("one"))).unwrap();
    assert_eq!(names(&schedule().ready), ["one", "other"]);
}

#[test]
fn a_task_is_modified_field_by_field() {
    let (store, _) = store(false);
    let session = store.create(&types()).unwrap();
    let fields = [("branch".to_owned(), "main".to_owned()), ("owner".to_owned(), "ada".to_owned())];
    create(&session, NewTask { fields: fields.into(), ..task("a") }).unwrap();
    create(&session, task("b")).unwrap();
    let modify = |changes: TaskChanges| {
        session.dispatch(TaskModified { task_id: id("a"), changes }).unwrap();
        TaskTreeState::from_session(&session).unwrap().tasks[&id("a")].clone()
    };
    let fields = [("branch".to_owned(), None), ("size".to_owned(), Some("small".to_owned()))].into();
    let after = modify(TaskChanges { title: Some("new".to_owned()), fields, ..TaskChanges::default() });
    assert_eq!(
        (after.title.as_str(), after.fields.len(), after.fields["size"].as_str()),
        ("new", 2, "small")
    );
    let after = modify(TaskChanges { parent: Some(Some(id("b"))), ..TaskChanges::default() });
    assert_eq!((after.parent, after.title.as_str()), (Some(id("b")), "new"));
    let tree = TaskTreeState::from_session(&session).unwrap();
    assert_eq!(names(&tree.root_tasks), ["b"]);
    assert_eq!(tree.children()[&id("b")].len(), 1);
    assert_eq!(modify(TaskChanges::default()).parent, Some(id("b")), "what is not named stays");
    assert_eq!(modify(TaskChanges { parent: Some(None), ..TaskChanges::default() }).parent, None);
}

#[test]
fn an_id_is_short_and_may_be_part_of_a_files_name() {
    for text in ["", ".", "..", ".hidden", "-x", "a/b", "a b", "ä", "a\n", "a\0", &"x".repeat(65)] {
        assert!(TaskId::new(text).is_err(), "{text:?}");
    }
    for text in ["a", "0", "A-1_b.c", &"x".repeat(64)] {
        assert_eq!(TaskId::new(text).unwrap().as_str(), text);
    }
    let error = TaskId::new("\u{1b}[31m").unwrap_err().to_string();
    assert!(!error.contains('\u{1b}'), "{error:?}");
    // A record with an invalid id is not read as a task.
    assert!(serde_json::from_str::<TaskId>("\"../x\"").is_err());
}
