use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::{AnyResource, Lease, LeaseHolder, Snapshotable};
use crate::error::{Error, Result};

/// The resources of a run, by their types. Cheap to clone; what it holds never changes.
#[derive(Clone, Default)]
pub struct ResourceRegistry {
    inner: Arc<Registered>,
}

#[derive(Default)]
struct Registered {
    /// An `Arc<T>` for each type `T`, which may be a trait object.
    by_type: BTreeMap<TypeId, Box<dyn Any + Send + Sync>>,
    /// Those that can be captured, by name.
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
    /// Begins a registry.
    pub fn builder() -> ResourceRegistryBuilder {
        ResourceRegistryBuilder { registered: Registered::default(), error: None }
    }

    /// The resource that was registered as a `T`.
    pub fn get<T: ?Sized + Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.inner.by_type.get(&TypeId::of::<T>())?.downcast_ref::<Arc<T>>().cloned()
    }

    /// The resource that was registered as a `T`, or this one.
    pub fn get_or<T: ?Sized + Send + Sync + 'static>(&self, default: Arc<T>) -> Arc<T> {
        self.get().unwrap_or(default)
    }

    /// Whether both are clones of one registry.
    pub(crate) fn is_same(&self, other: &ResourceRegistry) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The names of the resources that can be captured, in ascending order.
    pub fn names(&self) -> Vec<&str> {
        self.inner.captured.keys().map(AsRef::as_ref).collect()
    }

    pub(crate) fn captured(&self) -> &BTreeMap<Cow<'static, str>, Arc<dyn AnyResource>> {
        &self.inner.captured
    }

    /// Whether others may work on any of the resources.
    pub(crate) fn is_shared(&self) -> bool {
        self.inner.captured.values().any(|resource| resource.is_shared())
    }

    /// Waits until nobody else works on any of the resources. Those that were taken are among the `leases` even where
    /// another cannot be.
    pub(crate) fn lease(
        &self,
        lessee: &LeaseHolder<'_>,
        until: Option<Instant>,
        leases: &mut Vec<Lease>,
    ) -> Result<()> {
        for resource in self.inner.captured.values().filter(|resource| resource.is_shared()) {
            leases.extend(resource.lease(lessee, until)?);
        }
        Ok(())
    }
}

/// Collects resources; [`build`](ResourceRegistryBuilder::build) checks them.
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
    /// Registers a resource as a `T`: its own type, or a trait object's. It is not captured.
    pub fn resource<T: ?Sized + Send + Sync + 'static>(mut self, resource: Arc<T>) -> Self {
        if self.registered.by_type.insert(TypeId::of::<T>(), Box::new(resource)).is_some() {
            self.fail(std::any::type_name::<T>(), "another of that type is registered");
        }
        self
    }

    /// Registers a resource under its own type, to be captured before each tool and restored after one that fails.
    pub fn snapshotable<R: Snapshotable>(self, resource: Arc<R>) -> Self {
        self.named(R::NAME, Arc::clone(&resource)).resource::<R>(resource)
    }

    /// Registers a resource under the name that records have for it, to be captured and restored as any other. It is found
    /// by no type: this is for who recovers a session of another host's, and for several resources of one type.
    pub fn named<R: Snapshotable>(mut self, name: impl Into<Cow<'static, str>>, resource: Arc<R>) -> Self {
        let name = name.into();
        if self.registered.captured.insert(name.clone(), resource).is_some() {
            self.fail(&name, "another of that name is registered");
        }
        self
    }

    fn fail(&mut self, resource: &str, reason: &str) {
        let (resource, reason) = (resource.to_owned(), reason.to_owned());
        self.error.get_or_insert(Error::Resource { resource, reason });
    }

    /// Ends the registry.
    ///
    /// # Errors
    ///
    /// [`Error::Resource`] where two resources have one type or one name.
    pub fn build(self) -> Result<ResourceRegistry> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(ResourceRegistry { inner: Arc::new(self.registered) }),
        }
    }
}
