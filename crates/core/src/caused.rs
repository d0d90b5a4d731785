//! Errors that are their cause, whatever its type: those of sources and stages, which anybody may implement.

/// Defines such an error, but for what it says of the causes of its cause.
macro_rules! caused {
    ($(#[$doc:meta])+ $name:ident) => {
        $(#[$doc])+
        #[derive(Debug)]
        pub struct $name(alloc::boxed::Box<dyn core::error::Error + Send + Sync>);

        impl $name {
            /// With this cause, whose text is the whole message.
            #[must_use]
            pub fn new(cause: impl Into<alloc::boxed::Box<dyn core::error::Error + Send + Sync>>) -> Self {
                Self(cause.into())
            }

            /// The cause, where it is of this type.
            #[must_use]
            pub fn downcast_ref<E: core::error::Error + 'static>(&self) -> Option<&E> {
                self.0.downcast_ref()
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

pub(crate) use caused;
