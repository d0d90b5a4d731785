//! The shared library says by which name programs ask for it: that of its binary interface, not that of its
//! file.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libslipstream.so.0");
    }
}
