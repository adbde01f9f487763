//! Iterators over what subscribers receive.

use super::ReceiveError;

/// Whether a subscriber repeats this error for ever: it has lost its publisher.
pub(super) fn is_last(error: &ReceiveError) -> bool {
    matches!(error, ReceiveError::Gone { .. } | ReceiveError::Overtaken { .. })
}

/// Yields what `receive` returns, which waits, until the topic ends or the subscriber has lost its publisher. Errors are yielded.
pub(super) fn until_end<V>(
    mut receive: impl FnMut() -> Result<Option<V>, ReceiveError>,
) -> impl Iterator<Item = Result<V, ReceiveError>> {
    let mut is_over = false;
    std::iter::from_fn(move || {
        while !is_over {
            match receive() {
                Ok(None) => {}
                Ok(Some(value)) => return Some(Ok(value)),
                Err(ReceiveError::Ended { .. }) => is_over = true,
                Err(error) => {
                    is_over = is_last(&error);
                    return Some(Err(error));
                }
            }
        }
        None
    })
}

/// Yields what `receive` returns, which waits, without end. Errors are yielded.
pub(super) fn endlessly<V>(
    mut receive: impl FnMut() -> Result<Option<V>, ReceiveError>,
) -> impl Iterator<Item = Result<V, ReceiveError>> {
    std::iter::from_fn(move || {
        loop {
            if let Some(received) = receive().transpose() {
                return Some(received);
            }
        }
    })
}
