//! The models of the crate's protocols, for `tests/loom`. See [`crate::sync`] for what runs them.

pub use crate::notice::models as wake_word;
pub use crate::publisher::models as push;
pub use crate::repository::log::models as log;
pub use crate::repository::state::models as slot;
