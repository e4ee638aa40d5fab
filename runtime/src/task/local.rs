//! Values that belong to a task.

use std::cell::RefCell;
use std::future::Future;
use std::thread::LocalKey as ThreadKey;

/// Declares values that a future and what it awaits share, like `thread_local!` those of a thread.
///
/// ```
/// runtime::task_local! {
///     /// The request that is being answered.
///     static REQUEST: u64;
/// }
///
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() {
/// let answer = REQUEST.scope(7, async { REQUEST.with(|request| request + 1) });
/// assert_eq!(answer.await, 8);
/// assert!(REQUEST.try_with(|_| ()).is_err());
/// # }
/// ```
#[macro_export]
macro_rules! task_local {
    ($($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty);+ $(;)?) => {
        $(
            $(#[$attribute])*
            $visibility static $name: $crate::task::LocalKey<$type> = {
                ::std::thread_local! {
                    static VALUE: ::std::cell::RefCell<::std::option::Option<$type>> =
                        const { ::std::cell::RefCell::new(::std::option::Option::None) };
                }
                $crate::task::LocalKey::__new(&VALUE)
            };
        )+
    };
}

/// A value declared by [`task_local!`](crate::task_local).
pub struct LocalKey<T: 'static>(&'static ThreadKey<RefCell<Option<T>>>);

impl<T: 'static> LocalKey<T> {
    #[doc(hidden)]
    pub const fn __new(value: &'static ThreadKey<RefCell<Option<T>>>) -> Self {
        Self(value)
    }

    /// Runs a future that has the value. Tasks that it spawns don't have it.
    pub async fn scope<F: Future>(&'static self, value: T, future: F) -> F::Output {
        let mut value = Some(value);
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|context| {
            let _swapped = Swapped::enter(self, &mut value);
            future.as_mut().poll(context)
        })
        .await
    }

    /// Runs a function that has the value.
    pub fn sync_scope<R>(&'static self, value: T, action: impl FnOnce() -> R) -> R {
        let mut value = Some(value);
        let _swapped = Swapped::enter(self, &mut value);
        action()
    }

    /// Gives the value to a function.
    ///
    /// # Panics
    /// Outside of a scope of this value.
    pub fn with<R>(&'static self, action: impl FnOnce(&T) -> R) -> R {
        match self.try_with(action) {
            Ok(result) => result,
            Err(error) => panic!("{error}"),
        }
    }

    /// Gives the value to a function.
    pub fn try_with<R>(&'static self, action: impl FnOnce(&T) -> R) -> Result<R, NotInScope> {
        let found = self.0.try_with(|value| value.borrow().as_ref().map(action));
        found.ok().flatten().ok_or(NotInScope)
    }

    /// A copy of the value.
    ///
    /// # Panics
    /// Outside of a scope of this value.
    pub fn get(&'static self) -> T
    where
        T: Clone,
    {
        self.with(T::clone)
    }
}

opaque_debug!(LocalKey<T>, "LocalKey", [T]);

/// A task's value was asked for outside of its scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a task-local value is only there within the future that was given to its `scope`")]
pub struct NotInScope;

/// A value is the thread's while this lives, and another scope's is put aside.
struct Swapped<'a, T: 'static> {
    key: &'static LocalKey<T>,
    value: &'a mut Option<T>,
}

impl<'a, T> Swapped<'a, T> {
    fn enter(key: &'static LocalKey<T>, value: &'a mut Option<T>) -> Self {
        key.0.with(|place| std::mem::swap(&mut *place.borrow_mut(), value));
        Self { key, value }
    }
}

impl<T> Drop for Swapped<'_, T> {
    fn drop(&mut self) {
        // Fails only at the end of the thread, which drops what is there.
        let _ = self.key.0.try_with(|place| std::mem::swap(&mut *place.borrow_mut(), self.value));
    }
}
