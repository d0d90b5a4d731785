# Worst path of the netlist at one clock period, without wires and with the wire load model of the library if
# it has one, and what it draws if a net changes in every fifth cycle; synth.sh fills in the names.
read_liberty LIBERTY
read_verilog NETLIST
link_design TOP
create_clock -name clk -period PERIOD [get_ports clk]
set inputs {}
foreach port [all_inputs] {
    if {[get_property $port full_name] ne "clk"} { lappend inputs $port }
}
set_input_delay 0 -clock clk $inputs
set_output_delay 0 -clock clk [all_outputs]
report_checks -path_delay max -digits 3
report_worst_slack -digits 3
if {POWER} {
    set_power_activity -global -activity 0.2
    report_power
}
if {"WIRES" ne ""} {
    set_wire_load_model -name WIRES
    puts "with wires"
    report_worst_slack -digits 3
}
