//! A hint to the processor that a cache line will be read soon.

#![allow(unsafe_code)]

/// Asks for the cache line that holds `value`. No effect on what a program computes.
#[inline(always)]
pub fn prefetch<T>(value: Option<&T>) {
    #[cfg(target_arch = "x86_64")]
    if let Some(value) = value {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, and the address is that of a live reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// As [`prefetch`], of the line that holds `items[at]`, without asking whether there is such an item.
#[inline(always)]
pub fn prefetch_at<T>(items: &[T], at: usize) {
    prefetch_address(items.as_ptr().wrapping_add(at));
}

/// As [`prefetch`], of the line at an address, whatever is there.
#[inline(always)]
pub fn prefetch_address<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, and reads nothing that a program could see, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for the line at an address, whatever is there, to be written soon: another core that has it gives it
/// up.
#[inline(always)]
pub fn prefetch_to_write<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: a prefetch never faults, and changes nothing that a program could see, whatever the
        // address. Processors without this instruction take it for none.
        unsafe {
            core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
