//! Memory that the settings of a stage ask for.

use alloc::vec::Vec;

use super::BuildError;

/// Asks whether memory for tables, so many bytes each, can be had all at once, before it is taken: what is
/// taken in vain ends the process. That is still so if another thread takes it in between, or the system
/// promises more than it has.
///
/// # Errors
/// It can't; `setting` is to blame, which says how large the tables are.
pub fn need(setting: &'static str, tables: impl IntoIterator<Item = u64>) -> Result<(), BuildError> {
    let tables: Vec<u64> = tables.into_iter().collect();
    let had = |bytes: &u64| {
        let mut room = Vec::<u8>::new();
        let had = usize::try_from(*bytes).is_ok_and(|bytes| room.try_reserve_exact(bytes).is_ok());
        // The optimizer may take memory for had that nobody uses.
        core::hint::black_box(had.then_some(room))
    };
    let rooms: Option<Vec<Vec<u8>>> = tables.iter().map(had).collect();
    if rooms.is_some() {
        return Ok(());
    }
    let bytes = tables.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
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
