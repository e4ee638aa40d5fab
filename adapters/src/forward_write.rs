//! Writes of a stream that wraps another.

/// Implements futures-io's `AsyncWrite` for a type, by that of a field:
/// `forward_write!([S: AsyncWrite + Unpin] Io<S>, 0)`.
macro_rules! forward_write {
    ([$($generics:tt)*] $type:ty, $field:tt) => {
        impl<$($generics)*> futures_io::AsyncWrite for $type {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffer: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let inner = std::pin::Pin::new(&mut self.get_mut().$field);
                futures_io::AsyncWrite::poll_write(inner, context, buffer)
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffers: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let inner = std::pin::Pin::new(&mut self.get_mut().$field);
                futures_io::AsyncWrite::poll_write_vectored(inner, context, buffers)
            }

            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let inner = std::pin::Pin::new(&mut self.get_mut().$field);
                futures_io::AsyncWrite::poll_flush(inner, context)
            }

            fn poll_close(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let inner = std::pin::Pin::new(&mut self.get_mut().$field);
                futures_io::AsyncWrite::poll_close(inner, context)
            }
        }
    };
}

pub(crate) use forward_write;
