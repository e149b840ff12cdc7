//! Both engines keep the contract.

use std::sync::Arc;

use journal::{Oracle, Sqlite, Store, conformance};

#[tokio::test]
async fn the_oracle_keeps_the_contract() {
    conformance::run(|| Arc::new(Oracle::new())).await;
}

#[tokio::test]
async fn sqlite_keeps_the_contract() {
    for (name, case) in conformance::CASES {
        println!("{name}");
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(dir.path()).unwrap());
        case(store).await;
    }
}
