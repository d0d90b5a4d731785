//! Memory that the settings of a stage ask for.

use super::BuildError;
use crate::memory::can_be_had;

/// Bytes of tables that are taken without asking. What glibc's allocator gets back below this size it keeps
/// for later, and clears it by hand for whoever wants zeros: of tables that were asked for before, all memory
/// would be touched. Larger pieces come from the system each time, and are clear until they are written to.
const LITTLE: u64 = 32 << 20;

/// Asks whether memory for tables, so many bytes each, can be had before it is taken, as [`can_be_had`] does.
/// Less than 32 MiB in all is not asked for.
///
/// # Errors
/// It can't; `setting` is to blame, which says how large the tables are.
pub fn need(setting: &'static str, tables: impl IntoIterator<Item = u64>) -> Result<(), BuildError> {
    let bytes = tables.into_iter().fold(0, |sum: u64, bytes| sum.saturating_add(bytes));
    if bytes < LITTLE || can_be_had([usize::try_from(bytes).unwrap_or(usize::MAX)]) {
        return Ok(());
    }
    Err(BuildError::setting(setting, format!("memory for tables, {bytes} bytes, can't be had"))
        .hint(format!("give `{setting}` a lower value")))
}

#[cfg(test)]
mod tests {
    use super::need;

    #[test]
    fn memory_that_there_is_can_be_had_and_none_beyond() {
        assert_eq!(need("flows", [0, 1, 1 << 20]), Ok(()));
        for tables in [&[u64::MAX][..], &[1 << 50], &[4096, 1 << 62, 1 << 62]] {
            let error = need("flows", tables.iter().copied()).expect_err("more than any machine has");
            let bytes: u64 = tables.iter().sum();
            assert_eq!(error.setting, Some("flows"));
            assert_eq!(error.message, format!("memory for tables, {bytes} bytes, can't be had"));
            assert_eq!(error.hint.as_deref(), Some("give `flows` a lower value"));
        }
    }
}
