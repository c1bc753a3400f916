use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::{AnyResource, AnySnapshot, Snapshotable, downcast_snapshot};
use crate::error::{Error, Result};
use crate::session::operation_records::RecordedCaptures;

/// Creates a [copy](Snapshotable::scratch) of a resource, registered like the resource itself;
/// `None` if the resource has no copies.
type ScratchFactory = Arc<dyn Fn(&AnySnapshot) -> Result<Option<ResourceRegistry>> + Send + Sync>;

/// Contains the resources of a run by type, and those that can be captured also by name. Clones are
/// cheap. The set of resources never changes.
#[derive(Clone, Default)]
pub struct ResourceRegistry {
    inner: Arc<RegisteredResources>,
}

#[derive(Default)]
struct RegisteredResources {
    by_type: BTreeMap<TypeId, TypedResource>,
    /// Resources that can be captured, by their names in records.
    captured: BTreeMap<Cow<'static, str>, Arc<dyn AnyResource>>,
    /// Factories of the copies of these resources.
    copies: BTreeMap<Cow<'static, str>, ScratchFactory>,
}

/// A resource as one of its types.
#[derive(Clone)]
struct TypedResource {
    /// An `Arc<T>` of the type `T`, which may be a trait object.
    resource: Arc<dyn Any + Send + Sync>,
    /// Address of the resource, which is the same for all of its types.
    address: usize,
}

/// Registry with copies of resources.
pub(crate) struct ScratchRegistry {
    /// Registry that contains the copies in place of the resources.
    pub(crate) resources: ResourceRegistry,
    /// Whether it contains a copy of every resource that is rolled back with a failed tool.
    pub(crate) is_whole: bool,
}

impl fmt::Debug for ResourceRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = self.inner.by_type.len();
        f.debug_struct("ResourceRegistry")
            .field("types", &types)
            .field("snapshotable", &self.names())
            .finish()
    }
}

impl ResourceRegistry {
    /// Returns a builder for the resources of a registry.
    pub fn builder() -> ResourceRegistryBuilder {
        ResourceRegistryBuilder { registered: RegisteredResources::default(), error: None }
    }

    /// Returns the resource that was registered as a `T`; `None` if there is none.
    pub fn get<T: ?Sized + Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.inner.by_type.get(&TypeId::of::<T>())?.resource.downcast_ref::<Arc<T>>().cloned()
    }

    /// Returns whether both are clones of one registry.
    pub(crate) fn is_same(&self, other: &ResourceRegistry) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the names of the resources that can be captured, in ascending order.
    pub fn names(&self) -> Vec<&str> {
        self.inner.captured.keys().map(AsRef::as_ref).collect()
    }

    /// Returns the resources that can be captured, by name.
    pub(crate) fn captured_resources(&self) -> &BTreeMap<Cow<'static, str>, Arc<dyn AnyResource>> {
        &self.inner.captured
    }

    /// Returns whether any of the resources is shared with other sessions.
    pub(crate) fn is_shared(&self) -> bool {
        self.inner.captured.values().any(|resource| resource.is_shared())
    }

    /// Returns whether all captured resources are in memory.
    #[cfg(feature = "async")]
    pub(crate) fn is_in_memory(&self) -> bool {
        self.inner.captured.values().all(|resource| resource.is_in_memory())
    }

    /// Returns whether any of the resources is rolled back with a failed tool.
    pub(crate) fn is_rolled_back(&self) -> bool {
        self.inner.captured.values().any(|resource| resource.rolls_back())
    }

    /// Creates a registry with copies of the resources that are rolled back with a failed tool, in
    /// the state of these recorded captures. Resources without a copy are unchanged.
    pub(crate) fn scratch(&self, recorded: &RecordedCaptures) -> Result<ScratchRegistry> {
        let RegisteredResources { by_type, captured, .. } = &*self.inner;
        let mut scratch = RegisteredResources::default();
        let mut copied = BTreeSet::new();
        let rolled_back = captured.iter().filter(|(_, resource)| resource.rolls_back());
        for (name, resource) in rolled_back.clone() {
            let recorded = recorded.get(name.as_ref()).and_then(Option::as_ref);
            let Some((recorded, copy)) = recorded.zip(self.inner.copies.get(name)) else { continue };
            let Some(copy) = copy(&resource.recall(recorded)?)? else { continue };
            scratch.by_type.extend(copy.inner.by_type.iter().map(|(of, typed)| (*of, typed.clone())));
            scratch
                .captured
                .extend(copy.inner.captured.iter().map(|(of, copy)| (of.clone(), Arc::clone(copy))));
            copied.insert(address(resource));
        }
        let is_whole = rolled_back.clone().all(|(_, resource)| copied.contains(&address(resource)));
        for (name, resource) in captured {
            scratch.captured.entry(name.clone()).or_insert_with(|| Arc::clone(resource));
        }
        // A copied resource must not be found as another type either.
        for (of, typed) in by_type.iter().filter(|(_, typed)| !copied.contains(&typed.address)) {
            scratch.by_type.entry(*of).or_insert_with(|| typed.clone());
        }
        Ok(ScratchRegistry { resources: ResourceRegistry { inner: Arc::new(scratch) }, is_whole })
    }

    /// Returns a registry of the resources that are not captured.
    pub(crate) fn without_captured(&self) -> ResourceRegistry {
        let captured: BTreeSet<usize> = self.inner.captured.values().map(address).collect();
        let of_types = self.inner.by_type.iter().filter(|(_, typed)| !captured.contains(&typed.address));
        let by_type = of_types.map(|(of, typed)| (*of, typed.clone())).collect();
        ResourceRegistry {
            inner: Arc::new(RegisteredResources { by_type, ..RegisteredResources::default() }),
        }
    }
}

/// Returns the address of a resource, which does not depend on its type.
fn address<T: ?Sized>(resource: &Arc<T>) -> usize {
    Arc::as_ptr(resource).cast::<()>().addr()
}

/// Builds a [`ResourceRegistry`]. [`build`](ResourceRegistryBuilder::build) reports types and names
/// that were registered twice.
#[must_use]
pub struct ResourceRegistryBuilder {
    registered: RegisteredResources,
    error: Option<Error>,
}

impl fmt::Debug for ResourceRegistryBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourceRegistryBuilder").field("types", &self.registered.by_type.len()).finish()
    }
}

impl ResourceRegistryBuilder {
    /// Registers a resource as a `T`, which is its own type or a trait object's. The engine does
    /// not capture the resource.
    pub fn resource<T: ?Sized + Send + Sync + 'static>(mut self, resource: Arc<T>) -> Self {
        let typed = TypedResource { address: address(&resource), resource: Arc::new(resource) };
        if self.registered.by_type.insert(TypeId::of::<T>(), typed).is_some() {
            self.fail(std::any::type_name::<T>(), "another resource of that type is already registered");
        }
        self
    }

    /// Registers a resource under its own type and under [`Snapshotable::NAME`]. The engine
    /// captures it before each call that may make changes, and restores it if the call fails.
    pub fn snapshotable<R: Snapshotable>(self, resource: Arc<R>) -> Self {
        self.register_captured(R::NAME.into(), Arc::clone(&resource), |builder, resource| {
            builder.snapshotable::<R>(resource)
        })
        .resource::<R>(resource)
    }

    /// Registers a resource under a name of the host's choice in place of [`Snapshotable::NAME`].
    /// The engine captures and restores the resource like any other, but
    /// [`get`](ResourceRegistry::get) does not find it. Use this to recover a session of another
    /// host under the names in its records, and for several resources of one type.
    pub fn named<R: Snapshotable>(self, name: impl Into<Cow<'static, str>>, resource: Arc<R>) -> Self {
        let name = name.into();
        let own = name.clone();
        self.register_captured(name, resource, move |builder, resource| {
            builder.named::<R>(own.clone(), resource)
        })
    }

    /// Registers a resource that is captured. `again` registers a copy of it in the same way.
    pub(super) fn register_captured<R: Snapshotable>(
        mut self,
        name: Cow<'static, str>,
        resource: Arc<R>,
        again: impl Fn(ResourceRegistryBuilder, Arc<R>) -> ResourceRegistryBuilder + Send + Sync + 'static,
    ) -> Self {
        let of = Arc::clone(&resource);
        let copied: ScratchFactory = Arc::new(move |snapshot| {
            let copy = of.scratch(downcast_snapshot::<R>(snapshot)?)?;
            copy.map(|copy| again(ResourceRegistry::builder(), Arc::new(copy)).build()).transpose()
        });
        self.registered.copies.insert(name.clone(), copied);
        if self.registered.captured.insert(name.clone(), resource).is_some() {
            self.fail(&name, "another resource of that name is already registered");
        }
        self
    }

    /// Stores the first error for [`build`](ResourceRegistryBuilder::build).
    fn fail(&mut self, resource: &str, reason: &str) {
        let (resource, reason) = (resource.to_owned(), reason.to_owned());
        self.error.get_or_insert(Error::Resource { resource, reason });
    }

    /// Builds the registry.
    ///
    /// # Errors
    ///
    /// [`Error::Resource`] if two resources were registered under one type or one name.
    pub fn build(self) -> Result<ResourceRegistry> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(ResourceRegistry { inner: Arc::new(self.registered) }),
        }
    }
}
