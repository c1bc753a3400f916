use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::{AnyResource, Lease, LeaseHolder, Snapshotable};
use crate::error::{Error, Result};

/// Holds the resources of a run by their types, and those that can be captured by their names too. Cheap to
/// clone. The set of resources never changes.
#[derive(Clone, Default)]
pub struct ResourceRegistry {
    inner: Arc<Registered>,
}

/// Holds the registered resources.
#[derive(Default)]
struct Registered {
    /// An `Arc<T>` for each type `T`, which may be a trait object.
    by_type: BTreeMap<TypeId, Box<dyn Any + Send + Sync>>,
    /// Resources that can be captured, by their names in records.
    captured: BTreeMap<Cow<'static, str>, Arc<dyn AnyResource>>,
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
    /// Returns a builder that collects the resources of a registry.
    pub fn builder() -> ResourceRegistryBuilder {
        ResourceRegistryBuilder { registered: Registered::default(), error: None }
    }

    /// Returns the resource that was registered as a `T`; `None` if there is none.
    pub fn get<T: ?Sized + Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.inner.by_type.get(&TypeId::of::<T>())?.downcast_ref::<Arc<T>>().cloned()
    }

    /// Returns the resource that was registered as a `T`, or `default` if there is none.
    pub fn get_or<T: ?Sized + Send + Sync + 'static>(&self, default: Arc<T>) -> Arc<T> {
        self.get().unwrap_or(default)
    }

    /// Returns whether both are clones of one registry.
    pub(crate) fn is_same(&self, other: &ResourceRegistry) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the names of the resources that can be captured, in ascending order.
    pub fn names(&self) -> Vec<&str> {
        self.inner.captured.keys().map(AsRef::as_ref).collect()
    }

    /// Returns the resources that can be captured, by their names.
    pub(crate) fn captured(&self) -> &BTreeMap<Cow<'static, str>, Arc<dyn AnyResource>> {
        &self.inner.captured
    }

    /// Returns whether others may work on any of the resources.
    pub(crate) fn is_shared(&self) -> bool {
        self.inner.captured.values().any(|resource| resource.is_shared())
    }

    /// Takes the lease of each resource that others may work on, in ascending order of the names, and adds it
    /// to `leases`. If one lease cannot be taken, `leases` keeps those that were taken before.
    pub(crate) fn lease(
        &self,
        holder: &LeaseHolder<'_>,
        until: Option<Instant>,
        leases: &mut Vec<Lease>,
    ) -> Result<()> {
        for resource in self.inner.captured.values().filter(|resource| resource.is_shared()) {
            leases.extend(resource.lease(holder, until)?);
        }
        Ok(())
    }
}

/// Collects the resources of a [`ResourceRegistry`]. [`build`](ResourceRegistryBuilder::build) reports types
/// and names that were registered twice.
#[must_use]
pub struct ResourceRegistryBuilder {
    registered: Registered,
    error: Option<Error>,
}

impl fmt::Debug for ResourceRegistryBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourceRegistryBuilder").field("types", &self.registered.by_type.len()).finish()
    }
}

impl ResourceRegistryBuilder {
    /// Registers a resource as a `T`, which is its own type or a trait object's. The engine does not capture
    /// the resource.
    pub fn resource<T: ?Sized + Send + Sync + 'static>(mut self, resource: Arc<T>) -> Self {
        if self.registered.by_type.insert(TypeId::of::<T>(), Box::new(resource)).is_some() {
            self.fail(std::any::type_name::<T>(), "another of that type is registered");
        }
        self
    }

    /// Registers a resource under its own type and under [`Snapshotable::NAME`]. The engine captures it
    /// before each call that may change something, and restores it if the call fails.
    pub fn snapshotable<R: Snapshotable>(self, resource: Arc<R>) -> Self {
        self.named(R::NAME, Arc::clone(&resource)).resource::<R>(resource)
    }

    /// Registers a resource under a name of the host's choice in place of [`Snapshotable::NAME`]. The engine
    /// captures and restores the resource like any other, but [`get`](ResourceRegistry::get) does not find
    /// it. Use this to recover a session of another host under the names in its records, and for several
    /// resources of one type.
    pub fn named<R: Snapshotable>(mut self, name: impl Into<Cow<'static, str>>, resource: Arc<R>) -> Self {
        let name = name.into();
        if self.registered.captured.insert(name.clone(), resource).is_some() {
            self.fail(&name, "another of that name is registered");
        }
        self
    }

    /// Keeps the first error for [`build`](ResourceRegistryBuilder::build) to return.
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
