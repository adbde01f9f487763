//! Models of the protocols between threads and processes, checked by loom. Only `RUSTFLAGS="--cfg loom"` builds them.

#![cfg(loom)]

use fabricast::models;

/// A test for each of these models.
macro_rules! check {
    ($($module:ident::$model:ident;)*) => {
        $(
            #[test]
            fn $model() {
                models::$module::$model();
            }
        )*
    };
}

check! {
    slot::first_read_takes_a_whole_value;
    slot::reader_that_keeps_up_takes_whole_values;
    slot::values_of_an_earlier_epoch_are_refused;
    slot::copy_with_words_of_an_earlier_epoch_is_refused;
    slot::value_that_an_earlier_epoch_overwrites_is_refused;
    log::reader_that_keeps_up_takes_every_record;
    log::batch_is_taken_as_a_whole;
    log::lapped_reader_takes_whole_records_or_reports_them_lost;
    log::polling_reader_that_is_lapped_takes_no_later_record;
    push::landing_of_a_state_shows_whole_values_only;
    push::newest_value_of_a_landing_region_is_overwritten;
    push::unread_value_of_a_landing_region_is_overwritten;
    push::subscriber_reads_a_state_while_it_is_copied;
    push::landing_of_a_log_shows_whole_records_only;
    push::last_value_arrives_in_a_landing_region_that_is_new;
    push::last_value_arrives_in_a_landing_region_that_is_settled;
    wake_word::sleeper_misses_no_publish;
    wake_word::sleeper_with_a_barrier_misses_no_publish;
    wake_word::wake_reaches_every_sleeper;
    wake_word::subscriber_at_a_socket_misses_no_publish;
}
