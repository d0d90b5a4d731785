# Worst path of the netlist at one clock period; synth.sh fills in the names.
read_liberty LIBERTY
read_verilog NETLIST
link_design TOP
create_clock -name clk -period PERIOD [get_ports clk]
set_input_delay 0 -clock clk [all_inputs]
set_output_delay 0 -clock clk [all_outputs]
report_checks -path_delay max -digits 3
report_worst_slack -digits 3
